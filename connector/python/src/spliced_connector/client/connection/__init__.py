"""One connection to one start of a daemon: socket, mapped regions, requests and their replies.

    channel     the socket               greeting  what the daemon grants, hello asks for it
    trust       who may be the daemon
    exchange    requests and replies     staging   memory that requests name
    flight      requests without reply   returns   what is given back or cancelled
    attachment  all of it                life      its stages and users

`Keeper` of the client makes one after the other.
"""
