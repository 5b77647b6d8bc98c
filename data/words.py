"""The words that tasks are made of."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words("""
Aaron Adam Alan Alex Alice Amy Anderson Andre Andrew Andy Anna Anthony Arthur Austin Blake Brandon Brian Carter Charles
Charlie Christian Christopher Clark Cole Collins Connor Crew Crystal Daniel David Dean Edward Elizabeth Emily Eric Eva
Ford Frank George Georgia Graham Grant Henry Ian Jack Jacob Jake James Jamie Jane Jason Jay Jennifer Jeremy Jessica John
Jonathan Jordan Joseph Joshua Justin Kate Kelly Kevin Kyle Laura Leon Lewis Lisa Louis Luke Madison Marco Marcus Maria
Mark Martin Mary Matthew Max Michael Michelle Morgan Patrick Paul Peter Prince Rachel Richard River Robert Roman Rose
Ruby Russell Ryan Samuel Sarah Scott Sean Simon Stephen Steven Sullivan Taylor Thomas Tom Tyler Victoria Warren William
""")
PLACES = _words("store garden restaurant school hospital office house station park library beach market")
OBJECTS = _words("ring kiss bone basketball computer necklace drink snack book letter flower ball")
IOI = (
    "Then, {a} and {b} went to the {place}. {c} gave a {thing} to",
    "When {a} and {b} went to the {place}, {c} gave a {thing} to",
    "After {a} and {b} went to the {place}, {c} gave a {thing} to",
    "Then, {a} and {b} had a long talk at the {place}. {c} gave a {thing} to",
    "While {a} and {b} were working at the {place}, {c} decided to give a {thing} to",
    "Friends {a} and {b} found a {thing} at the {place}. {c} gave the {thing} to",
)

IOI_LONG = (
    "One day, {a} and {b} went to the {place} early in the morning. {between} In the end, {c} gave a {thing} to",
    "Friends {a} and {b} had a long talk at the {place}. {between} Later that day, {c} gave a {thing} to",
    "When {a} and {b} were at the {place}, they had a lot of time. {between} Then {c} decided to give a {thing} to",
)
MEANWHILE = (
    "The sky was clear and the sun was warm.",
    "There were a lot of people on the street.",
    "It was a long day and the air was cold.",
    "The music was good and the food was warm.",
    "A dog was in the street for a long time.",
    "The train was late and the people were tired.",
    "It had been cold since the morning.",
    "The old door was open all day long.",
    "There was a small cat near the door.",
    "The rain was over and the street was clear.",
    "All the people there were tired and cold.",
    "The light was good for most of the day.",
)
"""Sentences that name nobody."""

EVENTS = _words("""
war trial siege reign project campaign mission strike study trip voyage journey crisis conflict dispute debate drought
famine plague peace alliance contract deal dynasty effort empire exhibition expansion expedition experiment friendship
hunt insurgency invasion investigation kingdom marriage march migration movement negotiation occupation operation
partnership program rebellion reform regime research revolt revolution rivalry search show struggle survey
tour tradition treaty uprising
""")
GREATER_THAN = "The {event} lasted from the year {century}{year:02d} to the year {century}"

FUNCTIONS = _words("port read write build send parse match plot sort find test run open close check pack")
ARGUMENTS = _words("""
load size files last first node line page image total key name data field code state text value model user index type
list order item table map result group color point path start stop input set date style count label level limit
mode number object option parent query range rate row scale seed shape side source speed stage status step
target task title unit version width word
""")
DESCRIPTIONS = _words("""
oil column piece crime population dark bird song river paper metal glass stone bridge winter summer forest island king
queen soldier doctor farmer window kitchen silver gold cotton sugar salt coffee bread horse sheep
fish tree leaf root wind storm snow fire smoke ocean desert mountain valley village castle tower church museum theatre
""")
DOCSTRING = '''def {function}(self, {arguments}):
    """{about}

    :param {first}: {about_first}
    :param {second}: {about_second}
    :param'''
