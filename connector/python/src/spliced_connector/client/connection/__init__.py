"""One connection to one start of a daemon: socket, mapped regions, requests and their replies.

    channel     the socket               greeting  the daemon's grants, which hello requests
    trust       who may be the daemon
    exchange    requests and replies     staging   memory that requests name
    flight      requests without reply   returns   releases, aborts and cancels
    attachment  all of it                life      its stages and users

The client's `Keeper` makes one after the other.
"""
