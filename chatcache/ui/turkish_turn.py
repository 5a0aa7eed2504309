"""What is said of one turn, in Turkish. Part of `turkish.Turkish`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from chatcache.events import Phase, StatusEvent
from chatcache.stats import FinishReason, MissReason
from chatcache.ui.turn_texts import TurnTexts


class TurkishTurn(TurnTexts):
    """Türkçe."""

    FINISHED: ClassVar[Mapping[FinishReason, str]] = {
        FinishReason.LENGTH: "İzin verilen en uzun yanıta ulaşıldı.",
        FinishReason.CANCELLED: "Durduruldu.",
        FinishReason.CONTEXT_FULL: "Bağlam doldu; her şey saklandı.",
        FinishReason.INTERRUPTED: "Kesildi. Yazılanlar saklandı.",
        FinishReason.ERROR: "Yanıt bir hata yüzünden kesildi. Yazılanlar saklandı.",
    }
    WHAT_NEXT: ClassVar[Mapping[FinishReason, str]] = {
        FinishReason.LENGTH: "“Sürdür” ile devam eder.",
        FinishReason.CANCELLED: "“Sürdür” ile buradan devam eder.",
        FinishReason.CONTEXT_FULL: "Bir tur geri gidin, yeni bir sohbet başlatın ya da bu sohbetin en eski turlarını "
        "dışarıda bırakmasına izin verin (Ayarlar).",
        FinishReason.INTERRUPTED: "“Sürdür” ile buradan devam eder.",
        FinishReason.ERROR: "“Yeniden üret” ile tekrar denenir.",
    }

    SOURCES: ClassVar[Mapping[str, str]] = {
        "live": "bellekten",
        "disk": "diskten",
        "prefix": "ortak bir başlangıçtan",
    }

    def status(self, event: StatusEvent) -> str:
        progress = f" ({self.number(event.done)} / {self.tokens(event.total)})" if event.total else ""
        match event.phase:
            case Phase.LOADING:
                return "Modeli bekliyor…"
            case Phase.QUEUED:
                return "Sırasını bekliyor…"
            case Phase.RESTORING:
                return f"Önbellek getiriliyor{progress}…"
            case Phase.PREFILL:
                return f"Okunuyor{progress}…"
            case Phase.DECODE:
                return ""

    def miss(self, reason: MissReason, index: int | None, *, num_reused: int) -> str:
        start = f" ({self.number(index)}. tokenden başlayarak)" if index else ""
        match reason:
            case MissReason.TEMPLATE:
                return f"Modelin şablonu önceki metni değiştirdi, bu yüzden yeniden hesaplandı{start}."
            case MissReason.NO_CACHE if num_reused:
                return f"Şimdiki metnin kalanı ne bellekte ne diskteydi, bu yüzden hesaplandı{start}."
            case MissReason.NO_CACHE:
                return "Bu sohbetin bellekte önbelleği yoktu, bu yüzden her şey bir kez daha okundu."
            case MissReason.HISTORY:
                return f"Konuşma önbellektekinden farklı{start}; kalanı hesaplandı."
            case MissReason.SMALLER_FORM:
                return f"Bellekte yeniden yer var, bu yüzden önbellek tam duyarlıkla yeniden oluşturuldu{start}."
            case MissReason.CACHE_KIND:
                return f"Bu sohbetin önbelleği artık başka bir biçimde tutuluyor, bu yüzden yeniden oluşturuldu{start}."
            case MissReason.CONTEXT:
                return f"Sohbet modelin belleğini aştı, en eski turlar dışarıda bırakıldı; kalanı hesaplandı{start}."
            case MissReason.NOT_CROPPABLE:
                return f"Bu modelin durumu kısaltılamaz, bu yüzden yeniden hesaplandı{start}."

    def resumed(self, num_tokens: int, restore_s: float, num_computed: int, *, num_reused: int) -> str:
        resumed = self.tokens(num_tokens)
        if num_tokens < num_reused:
            resumed = f"{self.tokens(num_reused)} yeniden kullanıldı, {self.number(num_tokens)} tanesi"
        return (
            f"{resumed} {self.seconds(restore_s)} içinde diskten geri yüklendi; {self.tokens(num_computed)} hesaplandı."
        )

    def reused(self, num_reused: int, num_total: int, num_computed: int, sources: Sequence[tuple[str, int]]) -> str:
        origin = self._origin(sources)
        taken = f"yeniden kullanıldı{origin}" if len(sources) > 1 else f"{origin} alındı".strip()
        return (
            f"Modelin gereksindiğinin %{self.percent(num_reused, num_total)} kadarı zaten vardı: "
            f"{self.tokens(num_total)} içinden {self.number(num_reused)} tanesi {taken}, "
            f"{self.number(num_computed)} tanesi hesaplandı."
        )

    def accepted(self, num_accepted: int, num_drafted: int) -> str:
        return f"{self.tokens(num_drafted)} içinden {self.number(num_accepted)} kabul edildi"

    def first_turn(self, num_tokens: int) -> str:
        return f"Sohbetin ilk turu: {self.tokens(num_tokens)} bir kez hesaplandı."

    def all_computed(self, num_tokens: int) -> str:
        return f"{self.tokens(num_tokens)} hesaplandı."

    def recomputed(self, num_tokens: int) -> str:
        return f"{self.tokens(num_tokens)} bir onarımdan sonra yeniden hesaplandı."
