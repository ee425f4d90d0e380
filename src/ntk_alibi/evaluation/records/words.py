"""Words for the names of lines, variables and topics in records."""

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
#: Words that are in no name of the records that the nano models are trained on.
OTHER_ADJECTIVES = (
    "agile airy arctic atomic basic bouncy candid cosmic crunchy cubic dapper digital dusty "
    "elastic electric exotic fancy fluffy frosty fuzzy glossy graphic hasty husky icy jazzy jumbo "
    "knotty leafy linear lunar magnetic mental minty misty muddy nimble nordic orange oval peppy "
    "petite plastic polar pretty purple puffy rainy robotic rustic salty scenic shiny sleepy "
    "slim snowy solar spicy sunny tidy tiny toxic velvet yellow"
).split()
OTHER_NOUNS = (
    "album antenna avocado bagel balloon banjo battery bicycle biscuit bronze burger cactus camera "
    "carpet cello chimney coffee compass cookie cricket curtain diesel donkey engine ferry freezer "
    "gadget gallery giraffe guitar hamster helmet hotel igloo jaguar jigsaw kayak kiosk koala "
    "laptop library lobster magnet mango mosaic muffin napkin office parade pencil piano pizza "
    "puzzle radio rocket sandwich scooter shampoo sofa tennis tractor trumpet wagon zebra"
).split()
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
).split()


LINE_NAMES = tuple(f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS)

OTHER_LINE_NAMES = tuple(f"{x}-{noun}" for x in OTHER_ADJECTIVES for noun in OTHER_NOUNS)

TOPIC_WORDS = (TOPIC_NOUNS, TOPIC_PLACES, TOPIC_SUBJECTS)
