"""The variants of linear attention, with the two properties of each that an identity needs."""

from __future__ import annotations

from enum import IntEnum


class Transition(IntEnum):
    """The form of a linear layer's transition. The comments say what T stores per value head."""

    NONE = 0
    SCALAR = 1  # one number
    DIAGONAL = 2  # key_dim numbers
    DENSE = 3  # key_dim x key_dim, acting from the left


class Decay(IntEnum):
    """The granularity of a family's decay. The comments say what each value head has."""

    NONE = 0
    FIXED = 1  # a rate that the model fixes, see `Linear.slopes`
    PER_HEAD = 2  # a number for each token
    PER_KEY = 3  # a number for each token and key channel


class Family(IntEnum):
    """A variant of linear attention, with the form of its transition and its decay."""

    transition: Transition
    decay: Decay

    def __new__(
        cls, number: int, transition: Transition = Transition.NONE, decay: Decay = Decay.NONE
    ) -> Family:
        family = int.__new__(cls, number)
        family._value_ = number
        family.transition = transition
        family.decay = decay
        return family

    NONE = 0, Transition.NONE, Decay.NONE
    RETNET = 1, Transition.SCALAR, Decay.FIXED
    LIGHTNING = 2, Transition.SCALAR, Decay.FIXED
    MAMBA2 = 3, Transition.SCALAR, Decay.PER_HEAD
    GLA = 4, Transition.DIAGONAL, Decay.PER_KEY
    # A head for every channel, key_dim is the state size, value_dim 1.
    MAMBA1 = 5, Transition.DIAGONAL, Decay.PER_KEY
    DELTANET = 6, Transition.DENSE, Decay.NONE
    GDN = 7, Transition.DENSE, Decay.PER_HEAD
    KDA = 8, Transition.DENSE, Decay.PER_KEY
    # KDA with two gates per channel: one for erasing, one for writing.
    GDN2 = 9, Transition.DENSE, Decay.PER_KEY
