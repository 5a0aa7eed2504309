() => {
  // The second click of a double click is not a second step.
  document.addEventListener("click", (event) => {
    if (event.detail > 1 && event.target.closest("button")) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  }, true);

  // What puts text into the box, or sends it, leaves the person at the box.
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#send, #new-chat, [data-action='suggest'], [data-action='rollback']")) return;
    document.querySelector("#message textarea")?.focus();
  });

  const copyText = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const box = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  };
  window.chatcache = {
    copy: async (button) => {
      const from = button.dataset.action === "copy-code"
        ? button.closest(".code-block").querySelector("code")
        : button.closest(".message").querySelector(".prose");
      await copyText(from.innerText);
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
      if (event.target.closest("a[data-session], #new-chat")) close();
    });
    close();
    document.body.classList.add("cc-ready");
  };

  // The box takes text once the tab knows which chat it shows; what was typed before a reload is there again.
  const DRAFT = "chatcache-draft";
  const prepareBox = () => {
    const box = document.querySelector("#message textarea");
    if (!box || box.disabled) return setTimeout(prepareBox, 50);
    const draft = sessionStorage.getItem(DRAFT);
    if (draft && !box.value) {
      box.value = draft;
      box.dispatchEvent(new Event("input", { bubbles: true }));
    }
    if (document.activeElement === document.body) box.focus({ preventScroll: true });
  };
  window.addEventListener("pagehide", () => {
    sessionStorage.setItem(DRAFT, document.querySelector("#message textarea")?.value ?? "");
  });

  // New text is followed as long as the reader is at the end.
  const start = () => {
    const talk = document.getElementById("conversation");
    const toggle = document.querySelector("#sidebar .toggle-button");
    if (!talk || !toggle) return setTimeout(start, 50);
    leaveRoomForTheChat(toggle);
    prepareBox();
    let atEnd = true;
    talk.addEventListener("scroll", () => {
      atEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    });
    new MutationObserver(() => { if (atEnd) talk.scrollTop = talk.scrollHeight; })
      .observe(talk, { childList: true, subtree: true, characterData: true });
  };
  start();
}
