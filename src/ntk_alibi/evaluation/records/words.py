"""Word lists for the names, variables and topics in records."""

from __future__ import annotations

ADJECTIVES = (
    "amber ancient bitter blue brave brisk broad calm clever cold crisp curious damp deep "
    "distant eager early empty faint fair famous fierce firm gentle giddy golden grand green "
    "happy heavy hidden hollow humble idle jolly keen large little lively lone loud lucky "
    "mellow merry modest narrow noble odd pale patient plain polite proud quick quiet rapid "
    "rare rough royal rusty sharp shy silent silver"
).split()
NOUNS = (
    "acorn anchor apple arrow badger barrel basket beacon bell bottle bridge bucket button "
    "candle canyon castle cedar cherry circle cloud comet copper cotton crane desert dolphin "
    "dragon falcon feather fiddle flute forest fountain garden hammer harbor hatchet island "
    "jacket kettle ladder lantern lemon maple marble meadow mirror mountain needle orchard "
    "otter paddle parrot pebble pepper pigeon pillow planet pocket rabbit river saddle saucer "
    "shovel"
).split()
TOPIC_NOUNS = (
    "history future benefits dangers role beauty science price art origin care sound memory "
    "study trade craft"
).split()
TOPIC_PLACES = (
    "coastal modern rural urban northern southern tropical alpine public private regional "
    "common wild celebrated foreign local"
).split()
TOPIC_SUBJECTS = (
    "music farming sailing weaving cooking painting medicine gardens markets railways bridges "
    "theatre schools museums forests rivers"
).split()
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
).split()


LINE_NAMES = [f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]

TOPIC_WORDS = (TOPIC_NOUNS, TOPIC_PLACES, TOPIC_SUBJECTS)
