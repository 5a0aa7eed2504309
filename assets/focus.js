// A repaint changes rendered HTML in place, element by element: the one that has the focus may become another control or
// go away, and what was unfolded folds. After each repaint the focus is where it was, and so is what the person unfolded.
(() => {
  const { chatcache } = window;
  const KEPT = ["transcript", "notice", "cache", "chats"];
  const STOP = "stop"; // it goes away with the reply, and whoever stood on it stands at the box then

  const nameOf = (element) => {
    const part = element.closest([...KEPT, STOP].map((id) => `#${id}`).join());
    if (!part) return null;
    const { action, message, session } = element.dataset;
    const position = element.closest("article")?.dataset.position;
    const fold = element.matches("summary") ? element.parentElement.className : undefined;
    return { element, part: part.id, action, message, session, position, fold, isMessage: element.matches("article") };
  };

  const canHaveFocus = (article) => Object.assign(article, { tabIndex: -1 });
  chatcache.focusMessage = (article) => canHaveFocus(article).focus({ preventScroll: true });

  const find = ({ part, action, message, session, position, fold, isMessage }) => {
    const within = document.getElementById(part);
    if (part === STOP) return within;
    if (session) return within.querySelector(`[data-session="${CSS.escape(session)}"]`);
    const there = position === undefined ? within : within.querySelector(`article[data-position="${position}"]`);
    if (!there) return null;
    if (isMessage) return canHaveFocus(there);
    if (fold) return [...there.querySelectorAll("details")].find((e) => e.className === fold)?.firstElementChild;
    const same = (place) => [...place.querySelectorAll(`[data-action="${CSS.escape(action ?? "")}"]`)];
    const found = same(there).find((button) => position !== undefined || button.dataset.message === message);
    if (!found && action === "forward") return same(within)[0]; // it moves with the tip
    if (!found?.disabled) return found;
    return found.parentElement.querySelector("button:not(:disabled)");
  };

  let held = null;
  document.addEventListener("focusin", ({ target }) => {
    held = nameOf(target);
  });
  // Whoever clicks beside everything has taken the focus away.
  document.addEventListener("pointerdown", ({ target }) => {
    if (!target.closest("button, a, summary, textarea, input, [tabindex]")) held = null;
  });

  const unfolded = new Map();
  const keyOf = (details) => `${details.closest("article")?.dataset.id ?? "live"} ${details.className}`;
  document.addEventListener("click", ({ target }) => {
    const details = target.closest("summary")?.parentElement;
    if (!details?.closest("#conversation")) return;
    unfolded.set(keyOf(details), !details.open);
    requestAnimationFrame(() => details.open && details.scrollIntoView({ block: "nearest" }));
  });
  chatcache.unfold = (details) => {
    unfolded.set(keyOf(details), true);
    details.open = true;
  };
  const unfold = () => {
    for (const details of document.querySelectorAll("#conversation details")) {
      const wanted = unfolded.get(keyOf(details));
      if (wanted !== undefined && details.open !== wanted) details.open = wanted;
    }
  };

  const keep = () => {
    unfold();
    if (chatcache.editor?.keep() || chatcache.editor?.hasFocus() || !held) return;
    const active = document.activeElement;
    const isLost = active === document.body || active === held.element;
    if (!isLost) return;
    const found = find(held);
    if (found && found === active) return;
    if (found) found.focus({ preventScroll: true });
    else if (!chatcache.isTouched()) chatcache.box()?.focus({ preventScroll: true });
  };
  const watch = () => {
    const parts = [...KEPT, "live", "composer"].map((id) => document.getElementById(id));
    if (parts.includes(null)) return setTimeout(watch, 50);
    const observer = new MutationObserver(keep);
    for (const part of parts) {
      observer.observe(part, {
        childList: true, subtree: true, attributeFilter: ["open", "data-action", "data-message", "data-session", "disabled"],
      });
    }
  };
  watch();
})();
