"""What stands before topodns: stub blocks to print, Corefiles to check."""
