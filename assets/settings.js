// What is stored of a chat's settings has changed: the fields look at it.
let stored = "";
watch("value", () => {
  if (props.value === stored) return;
  stored = props.value;
  trigger("changed");
});
