"""The subcommands of ``accel``, one file each.

Other packages add theirs with the entry-point group ``accel.commands``.
"""
