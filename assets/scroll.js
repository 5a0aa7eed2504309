// Where the conversation is scrolled to. New text is followed as long as the reader is at its end, or has asked for it. A
// message in whose place another version is to be shown keeps its arrows where they are on screen. One that was looked for
// stands near the top, or in a long one the word that was looked for, whatever comes above and below, until the person moves.
(() => {
  const { chatcache } = window;
  const NEAR_PX = 80;
  const ABOVE = 0.15; // of the height: what stands above a message that was looked for
  const CONTROL_PX = 44;
  let atEnd = true;
  let held = null; // { selector, top }
  let sought = null; // the id of a message

  const talk = () => document.getElementById("conversation");
  const topOf = (selector) => document.querySelector(`#transcript ${selector}`)?.getBoundingClientRect().top;
  const soughtArticle = () => sought && document.querySelector(`#transcript article[data-id="${CSS.escape(sought)}"]`);
  // The word that it was found by, unless that is seen anyway, together with the message's beginning.
  const wordFarDown = (article) => {
    const word = chatcache.wordIn(article);
    const isFarDown = word && word.getBoundingClientRect().top - article.getBoundingClientRect().top > talk().clientHeight / 2;
    return isFarDown ? word : null;
  };
  const look = () => {
    atEnd = talk().scrollHeight - talk().scrollTop - talk().clientHeight < NEAR_PX;
  };
  // Where it cannot be scrolled far enough, there is room above or below the messages until something else is shown.
  const room = { above: 0, below: 0 };
  const makeRoom = (above, below) => {
    Object.assign(room, { above, below });
    const transcript = document.getElementById("transcript");
    if (transcript) Object.assign(transcript.style, { marginTop: `${above}px`, marginBottom: `${below}px` });
  };
  const keepHeld = () => {
    if (topOf(held.selector) === undefined) return makeRoom(0, 0);
    // In view, where what is below the messages has grown.
    const wanted = Math.min(held.top, talk().getBoundingClientRect().bottom - CONTROL_PX);
    const sunk = () => topOf(held.selector) - wanted;
    talk().scrollTop += sunk();
    makeRoom(Math.max(0, room.above - Math.round(sunk())), room.below);
    const left = Math.round(sunk());
    if (left <= 0) return;
    const end = document.getElementById("transcript").getBoundingClientRect().bottom + room.below;
    makeRoom(room.above, room.below + left + Math.max(0, talk().getBoundingClientRect().bottom - end));
    talk().scrollTop += left;
  };
  const settle = () => {
    if (chatcache.editor.isWriting()) return;
    const found = soughtArticle();
    if (found) {
      const { top, height } = talk().getBoundingClientRect();
      talk().scrollTop += (wordFarDown(found) ?? found).getBoundingClientRect().top - top - ABOVE * height;
    } else if (held) keepHeld();
    else if (atEnd) talk().scrollTop = talk().scrollHeight;
  };
  const letGo = () => {
    if (soughtArticle()) sought = null;
    if (!held) return;
    held = null;
    look();
  };

  chatcache.scroll = {
    // To the end, once what was asked for is shown.
    toEnd: () => {
      held = null;
      sought = null;
      makeRoom(0, 0);
      chatcache.unmark();
      atEnd = true;
    },
    // To a message, once it is shown.
    seek: (id) => {
      sought = id;
      settle();
    },
    // A control, where it is on screen, although what is above or below it becomes another.
    hold: (selector) => {
      const top = topOf(selector);
      if (held?.selector !== selector && top !== undefined) held = { selector, top };
    },
    // Two frames: the browser scrolls by itself, too, when what is above has grown.
    letGo: () => requestAnimationFrame(() => requestAnimationFrame(() => {
      settle();
      letGo();
    })),
  };

  const watch = () => {
    if (!talk()) return setTimeout(watch, 20);
    talk().addEventListener("scroll", look);
    for (const byHand of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      talk().addEventListener(byHand, letGo, { passive: true });
    }
    new MutationObserver(settle).observe(talk(), { childList: true, subtree: true, characterData: true });
    new ResizeObserver(settle).observe(talk()); // a notice takes room below it
  };
  watch();
})();
