"""One connection to one start of a daemon: socket, mapped regions, requests and their replies.

    channel     the socket                    greeting  what the daemon grants in its reply to hello
    trust       who may be the daemon         staging   memory with the data of requests
    exchange    requests and replies          returns   releases, aborts and cancels
    flight      requests without a reply yet  life      the connection's stages and users
    attachment  one connection with all of these

The client's `Keeper` makes one connection after the other.
"""
