// Where the conversation is scrolled to. New text is followed as long as the reader is at its end, or has asked for it. A
// message in whose place another version is to be shown keeps its arrows where they are on screen.
(() => {
  const { chatcache } = window;
  const NEAR_PX = 80;
  let atEnd = true;
  let held = null; // { position, top }

  const talk = () => document.getElementById("conversation");
  const topOf = (position) =>
    document.querySelector(`#transcript article[data-position="${position}"] .versions`)?.getBoundingClientRect().top;
  const look = () => {
    atEnd = talk().scrollHeight - talk().scrollTop - talk().clientHeight < NEAR_PX;
  };
  const settle = () => {
    if (held) talk().scrollTop += (topOf(held.position) ?? held.top) - held.top;
    else if (atEnd) talk().scrollTop = talk().scrollHeight;
  };
  const letGo = () => {
    if (!held) return;
    held = null;
    look();
  };

  chatcache.scroll = {
    // To the end, once what was asked for is shown.
    toEnd: () => {
      held = null;
      atEnd = true;
    },
    hold: (position) => {
      if (held?.position !== position) held = { position, top: topOf(position) };
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
    for (const byHand of ["wheel", "touchmove"]) talk().addEventListener(byHand, letGo, { passive: true });
    new MutationObserver(settle).observe(talk(), { childList: true, subtree: true, characterData: true });
    new ResizeObserver(settle).observe(talk()); // a notice takes room below it
  };
  watch();
})();
