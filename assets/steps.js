// The arrows between the versions of a message. Each click is one step, however fast: one that comes before the last step
// is shown waits for it, and goes on from what is shown then. Those that wait for one that is refused are forgotten.
(() => {
  const { chatcache } = window;
  const MOST_MS = 10000; // what is not shown by then has come to nothing
  let step = null; // { id, position, tell, waiting, ending }: the one that is not shown yet, and the clicks after it

  const end = () => {
    clearTimeout(step.ending);
    step = null;
    chatcache.scroll.letGo();
  };
  const begin = (id, position, tell, action, waiting = []) => {
    step = { id, position, tell, waiting, ending: setTimeout(end, MOST_MS) };
    chatcache.scroll.hold(`article[data-position="${position}"] .versions`);
    tell({ action, message: id });
  };
  const goOn = () => {
    const shown = step && document.querySelector(`#transcript article[data-position="${step.position}"]`);
    if (!step || shown?.dataset.id === step.id) return;
    const { position, tell, waiting } = step;
    end();
    while (shown && waiting.length) {
      const action = waiting.shift();
      if (shown.querySelector(`[data-action="${action}"]:not(:disabled)`)) {
        return begin(shown.dataset.id, position, tell, action, waiting);
      }
    }
  };

  chatcache.refused = () => {
    if (step) end();
  };

  // `tell` asks the server for a step.
  chatcache.step = (button, tell) => {
    const { id, position } = button.closest("article").dataset;
    const { action } = button.dataset;
    if (step?.id === id) step.waiting.push(action);
    else begin(id, position, tell, action);
  };
  const watch = () => {
    const transcript = document.getElementById("transcript");
    if (!transcript) return setTimeout(watch, 20);
    new MutationObserver(goOn).observe(transcript, { childList: true, subtree: true, attributeFilter: ["data-id"] });
  };
  watch();
})();
