"""The commands of ``topodns``: a module for each, named like it; ``dispatch.COMMANDS`` lists them."""
