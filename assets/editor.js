// A message is edited where it stands. The form outlives every repaint of the conversation; where its message is shown no
// longer, what was typed goes into the message box.
(() => {
  const { chatcache } = window;
  let open = null; // { form, id, position, isSaving, before }

  const article = (id) => document.querySelector(`#transcript article[data-id="${CSS.escape(id)}"]`);

  const fit = (textarea) => {
    textarea.style.height = "auto";
    textarea.style.height = `${textarea.scrollHeight + 2}px`;
  };

  const close = () => {
    const { form, position } = open;
    open = null;
    form.remove();
    const edit = document.querySelector(`#transcript article[data-position="${position}"] [data-action="edit"]`);
    (edit ?? chatcache.box()).focus({ preventScroll: true });
  };

  // What was typed and not saved is not lost: it goes before what is in the box.
  const moveToBox = () => {
    const { form, before, position } = open;
    const text = form.querySelector("textarea").value;
    const shown = document.querySelector(`#transcript article[data-position="${position}"]`);
    const isSaved = open.isSaving && shown && chatcache.sourceOf(shown) === text;
    if (!isSaved && text.trim() && text !== before) chatcache.prependToBox(text);
  };

  const begin = (id) => {
    if (open) {
      moveToBox();
      close();
    }
    const message = article(id);
    const role = message.classList.contains("user") ? "user" : "reply";
    const form = document.querySelector(`#editors form[data-role="${role}"]`).cloneNode(true);
    const textarea = form.querySelector("textarea");
    open = { form, id, position: message.dataset.position, isSaving: false, before: chatcache.sourceOf(message) };
    textarea.value = open.before;
    form.hidden = false;
    message.append(form);
    fit(textarea);
    textarea.focus({ preventScroll: true });
    textarea.setSelectionRange(textarea.value.length, textarea.value.length);
    form.scrollIntoView({ block: "nearest" });
  };

  const save = () => {
    const text = open.form.querySelector("textarea").value;
    if (open.form.dataset.role === "reply" && text === open.before) return close();
    open.isSaving = true;
    open.form.dispatchEvent(new CustomEvent("chatcache-act", {
      bubbles: true, detail: { action: "edit", message: open.id, text },
    }));
  };

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
      if (!open) return;
      moveToBox();
      open.form.remove();
      open = null;
    },
    // After a repaint; says whether the focus is settled.
    keep: (hadFocus) => {
      if (!open || open.form.isConnected) return false;
      const message = article(open.id);
      if (!message) {
        moveToBox();
        close();
        return true;
      }
      message.append(open.form);
      if (hadFocus) open.form.querySelector("textarea").focus({ preventScroll: true });
      return hadFocus;
    },
    holds: (element) => open !== null && open.form.contains(element),
  };
})();
