// What an action makes of a chat's draft.
watch("value", () => window.dispatchEvent(new CustomEvent("chatcache-draft", { detail: JSON.parse(props.value) })));
