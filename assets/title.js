// The title is changed where it stands: the box has the focus while it is there, and Escape leaves it as it was.
const head = element.closest("#head");
const box = () => head.querySelector("#rename-row input");
const back = () => {
  const rename = head.querySelector(".tool.rename");
  (rename?.checkVisibility() ? rename : head.querySelector("#menu button")).focus();
};
const later = (isReady, then, tries = 60) => {
  if (isReady()) then();
  else if (tries) setTimeout(later, 50, isReady, then, tries - 1);
};
head.addEventListener("click", (event) => {
  if (event.target.closest(".tool.rename")) later(box, () => box().select());
  else if (event.target.closest("#rename-row button")) later(() => !box(), back);
});
head.addEventListener("keydown", (event) => {
  if (!event.target.closest("#rename-row")) return;
  if (event.key === "Escape") head.querySelector("#cancel-title").click();
  if (event.key === "Enter") later(() => !box(), back);
});
