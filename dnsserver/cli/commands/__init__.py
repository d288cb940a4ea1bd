"""The commands of ``topodns``. Each has a module of its name here and a row in ``dispatch.COMMANDS``."""
