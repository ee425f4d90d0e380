// Which pages a search lists first: guides before the reference.
var Scorer = { // "var", since searchtools.js declares it so, too
  score: ([page, title, anchor, description, score]) => {
    if (/^(reference|notebooks)\//.test(page)) return score;
    if (/^(index|quickstart|choose-a-method|faq|serve)$/.test(page)) return score + 6;
    return score + 3;
  },

  // The values that Sphinx has itself.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
