// After another chat is shown, the settings are those of the one before until they are filled: they take nothing meanwhile.
const MOST_MS = 10000; // where filling fails, the page says so
let shown = null;
let waiting = 0;
const hold = (isWanted) => {
  clearTimeout(waiting);
  const fields = document.querySelector("#settings > div:last-child");
  if (fields) fields.inert = isWanted;
  if (isWanted) waiting = setTimeout(hold, MOST_MS, false);
};
const look = () => {
  const { session, form } = JSON.parse(props.value);
  hold(form !== null && session !== shown);
};
window.addEventListener("chatcache-place", ({ detail }) => {
  shown = detail.session || null;
  look();
});
watch("value", look);
