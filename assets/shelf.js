// The list of chats counts days in the time zone of the browser. It is read at first, and whenever the shelf has changed.
watch("value", () => trigger("changed"));
setTimeout(() => {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions();
  props.value = JSON.stringify({ ...JSON.parse(props.value), zone: timeZone });
  trigger("changed");
});
