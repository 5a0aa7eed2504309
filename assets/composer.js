// The message box: each chat keeps its draft, Enter that ends a composition does not send, Up edits the last message,
// Escape stops, and text files become text.
(() => {
  const { chatcache } = window;
  const DRAFTS = "chatcache-drafts";
  const MAX_DRAFTS = 50;
  const MAX_FILE_BYTES = 256 * 1024;
  const MOST_MS = 10000; // what has not been answered by then holds nothing back any more

  // ------------------------------------------------------------------ drafts
  let chat = null; // whose draft this is: null until the tab knows where it is, "" for a chat not yet begun
  let isShown = false; // the box holds this chat's draft
  let isUnderWay = false; // the person has asked for this chat, and the page is not there yet
  let sending = null; // { key, text, isTemporary, isLeft, isDone, ending }: what has gone out and is not stored yet
  let isWanted = false; // what is in the box is to be sent as soon as it can be

  const drafts = () => {
    try {
      return JSON.parse(localStorage.getItem(DRAFTS)) ?? {};
    } catch {
      return {};
    }
  };
  // Of a temporary chat nothing is stored, here as little as on the server: its draft lives as long as the tab.
  const fleeting = new Map();
  const temporaryChats = new Set();
  let isTemporary = false;
  const keepDraft = (key, text, isFleeting = isTemporary) => {
    const stays = text.trim() && !isFleeting;
    if (stays) fleeting.delete(key);
    else fleeting.set(key, text);
    const others = Object.entries(drafts()).filter(([name]) => name !== key);
    const all = stays ? [...others, [key, text]] : others;
    try {
      localStorage.setItem(DRAFTS, JSON.stringify(Object.fromEntries(all.slice(-MAX_DRAFTS))));
    } catch {
      // No room, or storage is switched off: the draft lives as long as the tab.
    }
  };
  const draftOf = (key) => drafts()[key] ?? fleeting.get(key) ?? "";
  const isInBox = (key) => isShown && key === chat;
  const get = (key) => (isInBox(key) ? chatcache.box().value : draftOf(key));
  chatcache.drafts = { chat: () => chat, get, keep: keepDraft };
  const remember = () => {
    if (isShown) keepDraft(chat, chatcache.box().value);
  };
  const whenBoxIsOpen = (action) => {
    const box = chatcache.box();
    if (!box || box.disabled) setTimeout(whenBoxIsOpen, 50, action);
    else action(box);
  };
  // A message that is going out is no part of the draft that is left; it comes back there where it is refused.
  const leaveBox = () => {
    chatcache.editor.leave();
    remember();
    if (!isShown || !sending || sending.isLeft || sending.key !== chat) return;
    const { value } = chatcache.box();
    sending.isLeft = true;
    if (value.startsWith(sending.text)) keepDraft(chat, value.slice(sending.text.length));
  };
  const showDraft = (session, temporary, whenShown = () => {}) => {
    const isFirst = chat === null;
    chat = session;
    isTemporary = temporary;
    isShown = false;
    whenBoxIsOpen((box) => {
      if (chat !== session) return;
      isShown = true;
      const draft = draftOf(chat);
      if (!(isFirst && box.value) && draft !== box.value) chatcache.setBox(draft);
      if (isFirst) whenShown(box);
    });
  };
  // The box is that of the chat that the person has asked for, from the click on; what is sent waits until the page is there.
  window.addEventListener("chatcache-asked", ({ detail: { session, temporary } }) => {
    if (chat === null) return;
    isUnderWay = true;
    if (session === chat && !sending) return;
    isWanted = false;
    leaveBox();
    showDraft(session, temporary || temporaryChats.has(session));
  });
  window.addEventListener("chatcache-online", () => {
    if (isUnderWay) chatcache.go(chat, isTemporary);
  });
  window.addEventListener("chatcache-place", ({ detail: { session, temporary, message } }) => {
    const hasBegunHere = chat === "" && session && !isUnderWay && sending && !sending.isLeft;
    isUnderWay = false;
    if (temporary && session) temporaryChats.add(session);
    if (session === chat || hasBegunHere) {
      if (hasBegunHere) keepDraft("", "");
      chat = session;
      isTemporary = temporary;
      remember();
    } else {
      if (chat !== null) leaveBox();
      showDraft(session, temporary, (box) => {
        if (!message && document.activeElement === document.body) box.focus({ preventScroll: true });
      });
    }
    sendIfWanted();
  });
  // What an action made of a chat's draft, wherever the person is by now. What was typed since stays, and so does a draft
  // that was changed otherwise.
  window.addEventListener("chatcache-draft", ({ detail: { session, begun, temporary, before, after } }) => {
    if (sending?.isLeft && sending.key === (session ?? "") && sending.text === before) {
      sending.isDone = true;
      return;
    }
    const isBegun = begun !== null && isInBox(begun) && get(begun).startsWith(before);
    const key = isBegun ? begun : (session ?? "");
    const text = get(key);
    if (!text.startsWith(before)) return;
    const typedSince = text.slice(before.length);
    const changed = before || !typedSince ? after + typedSince : `${after}\n\n${typedSince}`;
    keepDraft(key, changed, temporary);
    if (isInBox(key)) chatcache.setBox(changed);
  });
  window.addEventListener("pagehide", remember);

  // ------------------------------------------------------------------ sending
  const hasEnded = () => {
    if (!sending) return;
    const ended = sending;
    clearTimeout(ended.ending);
    sending = null;
    if (ended.isLeft) window.dispatchEvent(new Event("chatcache-elsewhere"));
    if (ended.isLeft && !ended.isDone) {
      const typed = get(ended.key);
      const both = typed.trim() ? `${ended.text}\n\n${typed}` : ended.text;
      keepDraft(ended.key, both, ended.isTemporary);
      if (isInBox(ended.key)) chatcache.setBox(both);
    }
    sendIfWanted();
  };
  window.addEventListener("chatcache-sent", hasEnded);
  // Whether what is in the box may go out now. Where it may not yet, it goes out later; a second time, it does not.
  const mayBeginSending = () => {
    if (isUnderWay || sending) {
      isWanted ||= isUnderWay || sending.isLeft;
      return false;
    }
    isWanted = false;
    const text = chatcache.box().value;
    const ending = setTimeout(hasEnded, MOST_MS);
    sending = { key: chat, text, isTemporary, isLeft: false, isDone: false, ending };
    if (text.trim()) chatcache.scroll.toEnd();
    return true;
  };
  const sendIfWanted = () => {
    if (!isWanted || isUnderWay || sending) return;
    isWanted = false;
    const { box } = chatcache;
    if (!isShown || !box().value.trim()) return;
    // Not by its button: that is not there while the chat that was left is still shown and is being answered.
    for (const kind of ["keydown", "keypress"]) {
      box().dispatchEvent(new KeyboardEvent(kind, { key: "Enter", bubbles: true, cancelable: true }));
    }
  };
  document.addEventListener("click", (event) => {
    if (event.target.closest("#send") && !mayBeginSending()) event.stopImmediatePropagation();
  }, true);

  // -------------------------------------------------------------------- keys
  const isBox = (element) => element === chatcache.box();
  for (const kind of ["keydown", "keypress"]) {
    document.addEventListener(kind, (event) => {
      if (!isBox(event.target) || event.key !== "Enter" || event.shiftKey) return;
      if (event.isComposing || event.keyCode === 229) event.stopImmediatePropagation();
      else if (kind === "keydown" && !mayBeginSending()) {
        event.preventDefault();
        event.stopImmediatePropagation();
      }
    }, true);
  }
  document.addEventListener("keydown", (event) => {
    if (!isBox(event.target) || event.isComposing) return;
    const isPlain = !(event.shiftKey || event.ctrlKey || event.altKey || event.metaKey);
    if (event.key === "ArrowUp" && isPlain && !event.target.value) {
      const edits = document.querySelectorAll("#transcript .message.user [data-action='edit']");
      if (!edits.length) return;
      event.preventDefault();
      chatcache.editor.begin(edits[edits.length - 1].dataset.message);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const stop = document.getElementById("stop");
    if (stop?.checkVisibility()) stop.click();
  });

  // ----------------------------------------------------------- what is typed
  let counting = 0;
  window.addEventListener("chatcache-changed", () => {
    remember();
    clearTimeout(counting);
    counting = setTimeout(() => window.dispatchEvent(new Event("chatcache-typed")), chatcache.box()?.value ? 350 : 0);
  });

  // ------------------------------------------------------------------- files
  const nameOf = (file) => {
    const last = file.name.split(/[\\/]/).pop().replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069`]/g, "");
    return last.slice(-100).trim() || "file";
  };
  const fenced = (name, text) => {
    const runs = [...text.matchAll(/`{3,}/g)].map(([run]) => run.length);
    const fence = "`".repeat(Math.max(2, ...runs) + 1);
    const kind = /\.([a-z0-9+#]{1,12})$/i.exec(name)?.[1].toLowerCase() ?? "";
    return `${name}\n${fence}${kind}\n${text.replace(/\r\n?/g, "\n").replace(/\n*$/, "\n")}${fence}`;
  };
  const textOf = async (file) => {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\u0000")) throw new TypeError("binary");
    return text;
  };
  const refuse = (reason, name) => {
    chatcache.tell(`file-${reason}`, name);
  };
  const add = async (files) => {
    for (const file of files) {
      const name = nameOf(file);
      if (file.size > MAX_FILE_BYTES) {
        refuse("too-large", name);
        continue;
      }
      try {
        const block = fenced(name, await textOf(file));
        const { value } = chatcache.box();
        chatcache.setBox(value.trim() ? `${value.replace(/\n*$/, "")}\n\n${block}\n` : `${block}\n`);
      } catch {
        refuse("no-text", name);
      }
    }
    chatcache.box().focus({ preventScroll: true });
  };
  const picker = Object.assign(document.createElement("input"), { type: "file", multiple: true, id: "attach-files" });
  picker.addEventListener("change", async () => {
    await add([...picker.files]);
    picker.value = "";
  });
  chatcache.pickFiles = () => picker.click();

  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  const isDesk = (event) => event.target.closest?.("#talk");
  let hovering = 0;
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    document.body.classList.toggle("cc-drop", Boolean(isDesk(event)));
    clearTimeout(hovering);
    hovering = setTimeout(() => document.body.classList.remove("cc-drop"), 200);
  });
  document.addEventListener("drop", (event) => {
    if (!holdsFiles(event) || !isDesk(event)) return;
    event.preventDefault();
    add([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    if (!isBox(event.target) || !event.clipboardData?.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    add([...event.clipboardData.files]);
  });
})();
