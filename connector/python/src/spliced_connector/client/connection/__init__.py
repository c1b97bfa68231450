"""One connection to one start of a daemon: socket, mapped regions, requests and their replies.

    channel     the socket               greeting  what the daemon grants, hello asks for it
    flight      requests without reply   staging   memory that requests name
    attachment  all of it, and its end   errands   what is returned without anybody waiting

`Keeper` of the client makes one after the other.
"""
