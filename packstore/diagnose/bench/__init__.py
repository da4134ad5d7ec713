"""``packstore bench``: finds what limits training with a store on this machine, and how to pack it for more speed."""
