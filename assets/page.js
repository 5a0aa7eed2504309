(() => {
  // The second click of a double click is not a second step, but from version to version it is one: see `steps.js`.
  document.addEventListener("click", (event) => {
    if (event.detail > 1 && event.target.closest("button:not(.versions *)")) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  }, true);

  // Gradio paints a list that has changed into the nodes that stand there: between pressing and letting go, a button may
  // become another one's. What was pressed is what was meant.
  const toldBy = (node) => ({ ...node.dataset, href: node.href });
  let pressed = null;
  document.addEventListener("pointerdown", ({ target }) => {
    const node = target.closest?.("[data-action], [data-session]");
    pressed = node && { node, told: toldBy(node) };
  }, true);
  const meant = (event, selector) => {
    const node = event.target.closest(selector);
    return node && (event.detail && pressed?.node === node ? pressed.told : toldBy(node));
  };

  // Where a button shows its icon only, pointing at it tells its name.
  document.addEventListener("pointerover", ({ target }) => {
    const button = target.closest?.("#session-tools .tool, #new-temporary-chat");
    if (button) button.title = button.textContent.trim();
  });

  // What puts text into the box, or sends it, leaves the person at the box.
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#send, #new-chat, #new-temporary-chat, [data-action='suggest'], [data-action='rollback']")) return;
    box()?.focus();
  });

  const copyText = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const box = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  };
  const box = () => document.querySelector("#message textarea");
  const setBox = (text) => {
    box().value = text;
    box().dispatchEvent(new Event("input", { bubbles: true }));
  };
  // What a button of a message copies is what was written: Markdown and LaTeX, not what became of them on the page.
  const sourceOf = (message) => message.dataset.source ?? message.querySelector(".bubble").textContent;
  window.chatcache = {
    box,
    setBox,
    prependToBox: (text) => setBox(box().value.trim() ? `${text}\n\n${box().value}` : text),
    isTouched: () => window.matchMedia("(pointer: coarse)").matches,
    sourceOf,
    meant,
    addressed: (what = "session") => new URLSearchParams(window.location.search).get(what) ?? "",
    // What happened on the page alone, for the server to say in its words.
    tell: (action, message = "") => {
      window.dispatchEvent(new CustomEvent("chatcache-told", { detail: { action, message } }));
    },
    go: (session, isTemporary = false, message = "") => {
      window.dispatchEvent(new CustomEvent("chatcache-go", { detail: { session, isTemporary, message } }));
    },
    copy: async (button) => {
      await copyText(button.dataset.action === "copy-code"
        ? button.closest(".code-block").querySelector("code").textContent
        : sourceOf(button.closest(".message")));
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1500);
    },
  };

  // On a narrow screen the list of chats covers the page: closed at first, and after something was chosen in it.
  const leaveRoomForTheChat = (toggle) => {
    const sidebar = document.getElementById("sidebar");
    const close = () => {
      if (window.matchMedia("(max-width: 768px)").matches && sidebar.classList.contains("open")) toggle.click();
    };
    sidebar.addEventListener("click", (event) => {
      if (event.target.closest("a[data-session], #new-chat, #new-temporary-chat")) close();
    });
    close();
    // Two frames: in the first one the list is where it belongs, in the second one it may slide.
    requestAnimationFrame(() => requestAnimationFrame(() => document.body.classList.add("cc-ready")));
  };

  const start = () => {
    const toggle = document.querySelector("#sidebar .toggle-button");
    const brand = document.querySelector("#sidebar .brand");
    if (!brand || !toggle?.parentElement.classList.contains("open")) return setTimeout(start, 20); // Gradio opens it at first
    toggle.title = brand.dataset.toggle; // Gradio names it in English alone
    toggle.setAttribute("aria-label", toggle.title);
    leaveRoomForTheChat(toggle);
  };
  start();
})();
