"""The words of the made-up language and the sentences that state its facts.

Everything here is data. A fact is (subject, relation, value); a Relation knows
the kinds of both ends, several sentences that state it and the question that
asks for it. The vocabulary is closed: every word of every sentence has an id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

PERSON, COMPANY, TOWN = "person", "company", "town"

NAMES: dict[str, tuple[str, ...]] = {
    PERSON: tuple(
        "Ada Agnes Albert Alma Anton Arthur Astrid Bella Bernard Boris Bruno Carla Cecil Clara "
        "Conrad Cora Daniel Dora Edgar Edith Elias Elsa Emil Erika Ernest Esther Eva Felix Flora "
        "Frank Frida Georg Greta Gustav Hanna Harold Hedda Henry Hugo Ida Igor Ingrid Irma Isaac "
        "Ivan Jacob Jane Johan Judith Julius Karl Karin Klara Lars Laura Leon Lena Linus Lotte "
        "Lucas Magda Marcus Maria Martha Max Mila Nina Nora Oscar Olga Otto Paul Petra Philip "
        "Rosa Rudolf Ruth Sara Simon Sofia Stefan Stella Sven Tilda Tobias Ulla Ulrich Vera "
        "Victor Viola Walter Wanda Werner Willa Xaver Yvonne".split()
    ),
    COMPANY: tuple(
        "Acorn Anvil Arrow Bastion Beacon Bolt Cascade Compass Comet Crown Delta Ember Falcon "
        "Fathom Garnet Harbour Helix Horizon Ironside Jupiter Keystone Lattice Lodestar Magnet "
        "Meridian Nimbus Nova Onyx Orbit Pinnacle Prism Quarry Ridge Saturn Sextant Summit "
        "Tandem Titan Vertex Zenith".split()
    ),
    TOWN: tuple(
        "Alden Ashby Barrow Belford Birch Brook Calder Castor Corby Dalton Denby Dover Elton "
        "Ely Fenwick Filey Garth Goole Hadley Harlow Hexham Ilkley Kendal Kirby Langley Ludlow "
        "Malton Marlow Morley Norton Oakham Penrith Ripon Selby Settle Thirsk Upton Wells "
        "Whitby Yarm".split()
    ),
}

VALUES: dict[str, tuple[str, ...]] = {
    **NAMES,
    "food": tuple(
        "bread cheese soup rice beans pears plums honey fish stew cake porridge noodles "
        "mushrooms olives figs carrots cabbage lentils dumplings pancakes walnuts eggs ham".split()
    ),
    "colour": tuple(
        "red blue green yellow black white grey brown purple orange pink silver".split()
    ),
    "animal": tuple(
        "dog cat horse goat parrot rabbit tortoise donkey pigeon ferret hen goose sheep pony "
        "canary lizard hamster raven duck pig frog falcon hedgehog snake".split()
    ),
    "instrument": tuple(
        "violin piano flute drum harp guitar trumpet cello organ banjo oboe horn lute tuba "
        "clarinet accordion".split()
    ),
    "trade": tuple(
        "baker nurse teacher painter carpenter lawyer pilot farmer tailor printer mason doctor "
        "judge clerk gardener weaver cook miner plumber sailor surveyor chemist editor "
        "barber".split()
    ),
    "month": tuple(
        "January February March April May June July August September October November "
        "December".split()
    ),
    "product": tuple(
        "clocks lamps boats bricks gloves ropes mirrors pianos bottles carpets engines knives "
        "ladders maps nails paints pumps saddles scales tents tools toys umbrellas wheels".split()
    ),
    "region": tuple(
        "Arden Borland Cumbria Devonia Estmere Fenland Galloway Holderness Islay Kestrel Lindsey "
        "Mercia Northmoor Orkney Pembria Rutland Severn Tyndale Ulster Wessex".split()
    ),
    "river": tuple(
        "Aire Cam Dee Esk Forth Irwell Kennet Lune Medway Nene Ouse Ribble Swale Tees Ure "
        "Wharfe".split()
    ),
    "item": tuple(
        "lantern key compass ledger medal brush locket drawing ring whistle telescope coin "
        "dagger hat basket flag".split()
    ),
}


@dataclass(frozen=True)
class Relation:
    """One kind of fact. {s} is the subject, {v} the value."""

    name: str
    subject: str
    value: str
    sentences: tuple[str, ...]
    question: str
    bridge: str = ""  # names the value by its subject; empty when the value has no note


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "employer",
        PERSON,
        COMPANY,
        (
            "{s} works for {v} .",
            "every day {s} goes to the office of {v} .",
            "{s} has been with {v} for many years .",
        ),
        "which company does {s} work for ?",
        "the employer of {s}",
    ),
    Relation(
        "home",
        PERSON,
        TOWN,
        (
            "{s} lives in {v} .",
            "{s} has a small house in {v} .",
            "the home of {s} is in {v} .",
        ),
        "in which town does {s} live ?",
        "the home of {s}",
    ),
    Relation(
        "friend",
        PERSON,
        PERSON,
        (
            "the best friend of {s} is {v} .",
            "{s} trusts nobody more than {v} .",
            "{s} has a good friend in {v} .",
        ),
        "who is the friend of {s} ?",
        "the friend of {s}",
    ),
    Relation(
        "likes",
        PERSON,
        "food",
        (
            "{s} likes {v} best .",
            "for dinner {s} always wants {v} .",
            "nothing tastes better to {s} than {v} .",
        ),
        "what food does {s} like ?",
    ),
    Relation(
        "keeps",
        PERSON,
        "animal",
        (
            "{s} keeps a {v} .",
            "{s} shares the house with a {v} .",
            "before breakfast {s} feeds the {v} .",
        ),
        "what animal does {s} keep ?",
    ),
    Relation(
        "trade",
        PERSON,
        "trade",
        (
            "{s} is a {v} by trade .",
            "{s} was trained as a {v} .",
            "{s} earns a living as a {v} .",
        ),
        "what is the trade of {s} ?",
    ),
    Relation(
        "plays",
        PERSON,
        "instrument",
        (
            "{s} plays the {v} .",
            "at night {s} practises the {v} .",
            "{s} learned the {v} as a child .",
        ),
        "what instrument does {s} play ?",
    ),
    Relation(
        "coat",
        PERSON,
        "colour",
        (
            "{s} wears a {v} coat .",
            "the coat of {s} is {v} .",
            "{s} is known by a {v} coat .",
        ),
        "what colour is the coat of {s} ?",
    ),
    Relation(
        "born",
        PERSON,
        "month",
        (
            "{s} was born in {v} .",
            "the birthday of {s} falls in {v} .",
            "{s} turns a year older in {v} .",
        ),
        "in which month was {s} born ?",
    ),
    Relation(
        "seat",
        COMPANY,
        TOWN,
        (
            "{s} has its main office in {v} .",
            "the main office of {s} stands in {v} .",
            "{s} moved to {v} long ago .",
        ),
        "in which town is {s} based ?",
        "the seat of {s}",
    ),
    Relation(
        "head",
        COMPANY,
        PERSON,
        (
            "{s} is led by {v} .",
            "the head of {s} is {v} .",
            "at {s} all orders come from {v} .",
        ),
        "who leads {s} ?",
        "the head of {s}",
    ),
    Relation(
        "makes",
        COMPANY,
        "product",
        (
            "{s} makes {v} .",
            "{s} is known for its {v} .",
            "the workers of {s} build {v} .",
        ),
        "what does {s} make ?",
    ),
    Relation(
        "opened",
        COMPANY,
        "month",
        (
            "{s} opened its doors in {v} .",
            "{s} was founded in {v} .",
            "{s} began as a small shop in {v} .",
        ),
        "in which month was {s} founded ?",
    ),
    Relation(
        "sign",
        COMPANY,
        "colour",
        (
            "the sign of {s} is {v} .",
            "{s} has a {v} sign over the door .",
            "{s} painted its sign {v} .",
        ),
        "what colour is the sign of {s} ?",
    ),
    Relation(
        "region",
        TOWN,
        "region",
        (
            "{s} lies in {v} .",
            "{s} is a town of {v} .",
            "{s} belongs to {v} .",
        ),
        "in which region does {s} lie ?",
    ),
    Relation(
        "river",
        TOWN,
        "river",
        (
            "{s} stands on the {v} .",
            "the bridge of {s} crosses the {v} .",
            "{s} takes its water from the {v} .",
        ),
        "which river flows through {s} ?",
    ),
    Relation(
        "mayor",
        TOWN,
        PERSON,
        (
            "the mayor of {s} is {v} .",
            "{s} chose its mayor , {v} .",
            "the people of {s} voted for {v} .",
        ),
        "who is the mayor of {s} ?",
        "the mayor of {s}",
    ),
    Relation(
        "dish",
        TOWN,
        "food",
        (
            "{s} is famous for its {v} .",
            "visitors of {s} ask for {v} .",
            "the inns of {s} serve {v} .",
        ),
        "what food is {s} famous for ?",
    ),
    Relation(
        "fair",
        TOWN,
        "month",
        (
            "the fair of {s} is held in {v} .",
            "{s} holds its fair in {v} .",
            "crowds come to {s} in {v} .",
        ),
        "in which month is the fair of {s} ?",
    ),
)

# An item goes from hand to hand: the note that comes last in the prompt says who has it.
MOVES = (
    "{s} now has the {v} .",
    "the {v} was handed to {s} .",
    "{s} took the {v} away .",
)
HOLDER_QUESTION = "who has the {v} now ?"
HOLDER = "the person who has the {v} now"  # in place of a subject, in the questions about people

TITLES = {
    PERSON: "note on the person {s} .",
    COMPANY: "note on the company {s} .",
    TOWN: "note on the town {s} .",
}

INSTRUCTION = "read the notes in the order of time and answer the question ."
QUESTION = "question : {q} answer :"
END = "<end>"
SPECIAL = ("<pad>", END, "<unk>")

# A name in braces stands for any value of that kind. So these sentences contain words that look
# like answers but are none.
FILLERS = (
    "the weather was mild that year .",
    "little else is known about those days .",
    "many people still remember the long winter .",
    "the old records were lost in a fire .",
    "some say that the story is true .",
    "nobody could explain what happened next .",
    "it took a long time before the road was finished .",
    "there was much talk about it in the papers .",
    "in the evening the streets are quiet .",
    "the winter was cold and the summer was dry .",
    "a letter from that time tells more .",
    "the train stops twice a day .",
    "a new school was built near the station .",
    "after the war things changed slowly .",
    "most of this was written down by a neighbour .",
    "the bells ring at noon .",
    "others have told the story in a different way .",
    "the hills are covered with woods .",
    "on clear days one can see the coast .",
    "there are plans for a new bridge .",
    "a small museum shows old tools and pictures .",
    "the market sells {food} and {food} .",
    "a {animal} crossed the road .",
    "someone played the {instrument} next door .",
    "it rained for most of {month} .",
    "a {colour} cart stood outside .",
    "the {trade} and the {trade} could not agree .",
    "a visitor brought {food} and a {animal} .",
    "the shop next door sells {product} .",
    "the road from {region} was closed .",
    "a boat came down the {river} in {month} .",
    "the walls were painted {colour} and {colour} .",
)


def _words() -> tuple[str, ...]:
    """Returns every word once: special words, values, then all others in order of appearance."""
    seen = dict.fromkeys(SPECIAL)
    for kind in VALUES.values():
        seen.update(dict.fromkeys(kind))
    lines = [INSTRUCTION, QUESTION, HOLDER_QUESTION, *MOVES, *TITLES.values(), *FILLERS]
    for r in RELATIONS:
        lines += [*r.sentences, r.question, r.bridge]
    lines.append(HOLDER)
    for line in lines:
        seen.update(dict.fromkeys(w for w in line.split() if not w.startswith("{")))
    return tuple(seen)


WORDS = _words()
IDS = {word: i for i, word in enumerate(WORDS)}
VOCABULARY = 640  # rows of the embedding: the words, rounded up to a multiple of 64


def encode(text: str) -> list[int]:
    """Returns the token ids of a text of known words, split at white space."""
    return [IDS[word] for word in text.split()]


def decode(ids: list[int]) -> str:
    """Returns the words of token ids; <unk> for an id without a word."""
    return " ".join(WORDS[i] if i < len(WORDS) else "<unk>" for i in ids)


def tokenizer_json() -> str:
    """Returns the tokenizer for Hugging Face's tokenizers: whole words, split at white space."""
    special = [
        {
            "id": IDS[word],
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for word in SPECIAL
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": IDS, "unk_token": "<unk>"},
        },
        indent=1,
    )
