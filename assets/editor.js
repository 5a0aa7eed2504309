// A message is edited where it stands. The form outlives every repaint of the conversation. What was typed and not saved
// is kept as a draft of that edit: whoever comes back to the chat finds the form open as it was left. Where its message
// is shown no longer, as another window went elsewhere, it goes into the message box, and the page says so.
(() => {
  const { chatcache } = window;
  let open = null; // { form, id, key, position, hasFocus, isSaving, before }
  let seen = null; // the chat whose messages are on the page
  let isArriving = true; // a form that was left open in the chat is opened again, once its messages can be edited

  const article = (id) => document.querySelector(`#transcript article[data-id="${CSS.escape(id)}"]`);

  const fit = (textarea) => {
    textarea.style.height = "auto";
    textarea.style.height = `${textarea.scrollHeight + 2}px`;
  };

  const keyOf = (id) => `edit ${chatcache.drafts.chat()} ${id}`;
  const keep = (text) => chatcache.drafts.keep(open.key, text === open.before ? "" : text);

  const leave = () => {
    open?.form.remove();
    open = null;
  };

  const close = () => {
    const { position } = open;
    keep(open.before);
    leave();
    const edit = document.querySelector(`#transcript article[data-position="${position}"] [data-action="edit"]`);
    (edit ?? chatcache.box()).focus({ preventScroll: true });
  };

  const moveToBox = () => {
    const { form, before, position } = open;
    const text = form.querySelector("textarea").value;
    const shown = document.querySelector(`#transcript article[data-position="${position}"]`);
    const isSaved = open.isSaving && shown && chatcache.sourceOf(shown) === text;
    if (isSaved || !text.trim() || text === before) return;
    chatcache.prependToBox(text);
    chatcache.tell("edit-moved");
  };

  const begin = (id, isAsked = true) => {
    leave();
    isArriving = false;
    const message = article(id);
    const role = message.classList.contains("user") ? "user" : "reply";
    const form = document.querySelector(`#editors form[data-role="${role}"]`).cloneNode(true);
    const textarea = form.querySelector("textarea");
    const before = chatcache.sourceOf(message);
    open = { form, id, key: keyOf(id), position: message.dataset.position, hasFocus: false, isSaving: false, before };
    textarea.value = chatcache.drafts.get(open.key) || before;
    form.hidden = false;
    message.append(form);
    fit(textarea);
    if (!isAsked) return;
    textarea.focus({ preventScroll: true });
    textarea.setSelectionRange(textarea.value.length, textarea.value.length);
    form.scrollIntoView({ block: "nearest" });
  };

  const resume = () => {
    if (!isArriving || seen !== chatcache.drafts.chat()) return;
    const edits = [...document.querySelectorAll("#transcript article [data-action='edit']")];
    if (edits.length) isArriving = false;
    const drafted = edits.find((edit) => chatcache.drafts.get(keyOf(edit.dataset.message)));
    if (drafted) begin(drafted.dataset.message, false);
  };
  window.addEventListener("chatcache-seen", ({ detail }) => {
    seen = detail;
    requestAnimationFrame(resume);
  });

  const save = () => {
    const text = open.form.querySelector("textarea").value;
    if (open.form.dataset.role === "reply" && text === open.before) return close();
    open.isSaving = true;
    open.form.dispatchEvent(new CustomEvent("chatcache-act", {
      bubbles: true, detail: { action: "edit", message: open.id, text },
    }));
  };

  // A repaint takes the focus away for a moment, and nobody has left the form then.
  document.addEventListener("focusin", ({ target }) => {
    if (open) open.hasFocus = open.form.contains(target);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form.editor")) return;
    event.preventDefault();
    save();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-edit='cancel']")) close();
  });
  document.addEventListener("input", (event) => {
    if (!open || !open.form.contains(event.target)) return;
    open.isSaving = false;
    keep(event.target.value);
    fit(event.target);
  });
  document.addEventListener("keydown", (event) => {
    if (!open || !open.form.contains(event.target) || event.isComposing) return;
    if (event.key === "Escape") {
      event.preventDefault(); // it stops nothing then
      close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      save();
    }
  });

  chatcache.editor = {
    begin,
    isOpen: () => open !== null,
    leave: () => {
      leave();
      isArriving = true;
    },
    hasFocus: () => open !== null && open.hasFocus,
    // Whoever writes in the form sees it, whatever else happens on the page.
    isWriting: () => open !== null && open.hasFocus && !open.isSaving,
    // After a repaint; says whether the focus is settled.
    keep: () => {
      resume();
      if (!open || open.form.isConnected) return false;
      const message = article(open.id);
      if (!message) {
        moveToBox();
        close();
        return true;
      }
      message.append(open.form);
      if (open.hasFocus) open.form.querySelector("textarea").focus({ preventScroll: true });
      return open.hasFocus;
    },
  };
})();
