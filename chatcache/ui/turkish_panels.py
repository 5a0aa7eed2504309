"""The texts of the right column in Turkish. Part of `turkish.Turkish`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from chatcache.stats import Limits
from chatcache.ui.chat_figures import Uncounted
from chatcache.ui.figures import unbroken
from chatcache.ui.panel_texts import PanelTexts


class TurkishPanels(PanelTexts):
    """Türkçe."""

    SETTINGS = "Sohbet ayarları"
    SETTING_NAMES: ClassVar[Mapping[str, str]] = {
        "system_prompt": "Sistem istemi",
        "temperature": "Sıcaklık",
        "top_p": "Top-p",
        "top_k": "Top-k",
        "min_p": "Min-p",
        "repetition_penalty": "Yineleme cezası",
        "max_new_tokens": "En çok token",
        "seed": "Tohum",
        "stop": "Durdurma dizileri",
        "cache": "Önbellek türü",
        "context_full": "Bağlam dolunca",
        "thinking": "Düşünme",
        "prompt_lookup": "İstemden tahmin",
    }
    SETTING_HINTS: ClassVar[Mapping[str, str]] = {
        "stop": "Her satıra bir tane. \\n satır sonu demektir.",
        "prompt_lookup": "Önceden yazılanlardan tahmin eder; yinelenen metinde daha hızlıdır.",
    }
    NO_SYSTEM_PROMPT = "Yok"
    NO_STOP_STRINGS = "Yok"
    SEED_DRAWN = "Rastgele"
    CONTEXT_FULL_CHOICES: ClassVar[Mapping[str, str]] = {
        "drop-oldest": "En eski turları dışarıda bırak",
        "stop": "Yanıtı durdur",
    }
    AS_THE_MODEL = "Modele bırak"
    ON = "Açık"
    OFF = "Kapalı"
    RESET_SETTINGS = "Modelin varsayılanlarına dön"
    SETTINGS_RESET = "Sonraki turdan başlayarak modelin kendi varsayılanları geçerli. Sistem istemi kalır."
    SETTINGS_SAVED = "Kaydedildi. Sonraki turdan başlayarak geçerli."
    SETTINGS_KEPT = "Alındı. Sohbet bununla başlayacak."
    SETTINGS_REREAD = (
        "Kaydedildi. Sonraki turda model bu sohbeti yeniden okur, çünkü her şey sistem isteminden sonra gelir."
    )
    SETTINGS_NEW_FORM = "Kaydedildi. Sonraki turda bu sohbetin önbelleği yeni biçimini alır."
    SETTINGS_REFUSED = "İşaretli olanlar kaydedilmedi."

    MEMORY = "Bellek"
    THIS_CHAT = "Bu sohbet"
    RESERVED = "Ayrılmış"
    FREE = "Boş"
    USED = "Kullanılan"
    FRAME = "Sonraki iletinin çerçevesi"
    RESERVED_FOR_REPLY = "Yanıt için boş tutulan"
    MORE_IN_MEMORY = "Geri alınan da bellekte duruyor: yeniden ileri gidilince hiçbir şey hesaplanmaz."
    THIS_REPLY = "Bu yanıt"
    WRITING = "Yazılıyor…"
    SPEEDS = "Saniyede token"
    NOW = "şimdi"
    AT_THE_END = "sonunda"
    LAST_REPLY = "Son yanıt"
    PREFETCHED = "Açılınca"
    UNCOUNTED: ClassVar[Mapping[Uncounted, str]] = {
        Uncounted.BY_HAND: "Elle yazıldı: model bunun için hiçbir şey hesaplamadı.",
        Uncounted.INTERRUPTED: "Kesildiği için neye mal olduğu sayılmadı.",
        Uncounted.NOTHING_READ: "Model bir şey okuyamadan bitti.",
        Uncounted.UNKNOWN: "Neye mal olduğu sayılmadı.",
    }
    BEGAN_SHARED = "Sohbetlerin aynı olan başlangıcı, örneğin sistem istemi, bir kez okunur ve hepsi için saklanır."

    STORAGE = "Depolama"
    STORAGE_WAITS = "Bakılıyor…"
    STORAGE_EMPTY = "Henüz hiçbir sohbetin önbelleği diskte değil."
    OTHER_CACHES = "Tüm diğerleri"
    SHARED = "Birkaç sohbette ortak, bir kez sayılan"
    SET_ASIDE = "Bozuk, kenara ayrılan"
    DATABASE = "Sohbetler ve metinler"
    HIT_RATE = "Hesaplanmadan diskten getirilen"
    DROP_CACHE = "Önbelleği boşalt"
    DROP_ALL = "Tüm önbellekleri boşalt"
    DROP_ALL_QUESTION = (
        "Bellekteki ve diskteki bütün önbellekler boşaltılsın mı? Hiçbir sohbetin tek sözcüğü bile kaybolmaz; her biri "
        "sürdürülünce bir kez daha okunur."
    )
    DROP_BUSY = "Bu sohbette bir yanıt yazılıyor. Durdurun ya da bekleyin, sonra önbelleğini boşaltın."
    VERIFY = "Denetle"
    VERIFY_STARTS = "Denetleniyor…"
    IN_THE_BIN = "çöp kutusunda"

    PLAN = "Bellek planı"
    PLAN_WAITS = "Plan, model yüklenince burada gösterilir."
    PLAN_CONTEXT = "Bağlam (token)"
    PLAN_CHATS = "Aynı anda sohbet"
    PLAN_KIND = "Hangi önbellekle"
    WEIGHTS = "Ağırlıklar"
    WORKSPACE = "Çalışma"
    TOTAL = "Toplam"
    FITS = "sığar"
    FITS_NOT = "sığmaz"
    PLAN_NOT_POSSIBLE = "Burada olanaksız"
    PLAN_CURVES = "Bağlama göre bayt"
    PLAN_TABLE = "Tablo olarak"
    PLAN_ADVICE = "Ne yardımcı olur"
    IT_FITS_THEN = "O zaman sığar."

    IN_THIS_CHAT = "Bu sohbette"
    WHAT_FIGURES_MEAN = "Sayılar ne anlatıyor"
    MEANINGS: ClassVar[Mapping[str, str]] = {
        "REUSED_TOKENS": "Modelin bu sohbette ya da bir başkasında önceden okuduğu: yeniden hesaplanmaz.",
        "COMPUTED_TOKENS": "Modelin bu yanıt için okuması gereken.",
        "IN_THIS_CHAT": "Bu sohbetin bütün turları, toplam olarak, görünmeyen sürümlerinkiler de; başka bir sohbetten "
        "açıldıysa onunla gelenler de. Süre: o kadarını, bu sohbetin en hızlı okunduğu hızla okumak ne kadar sürerse, "
        "diskten getirme süresi düşülerek.",
        "RESERVED": "Hiçbir yanıt yarıda belleksiz kalmasın diye sohbetlere önceden ayrılan bellek.",
        "USED": "Bu sohbette okunanların ve yazılanların tümü. Yanıtı bitiren token bir sonraki turda okunur; bu "
        "yüzden okunan ile yazılanın toplamından bir eksik olabilir.",
        "FRAME": "Sonraki turun sizin sözlerinizin dışında okuduğu: son yanıtın sonu ve modelin şablonunun iletinin "
        "çevresine koydukları; yeni bir sohbette sistem istemi de.",
        "RESERVED_FOR_REPLY": "Yanıtın en çok tutabileceği yer; ayarlardaki “En çok token” ile değişir.",
        "TTFT": "Tıklamanızdan yanıtın ilk tokenine kadar geçen süre.",
        "SPEED": "Yazarken ölçülür; okuma sayılmaz.",
        "WRITTEN": "Modelin seçtiği bütün tokenler; yanıtı bitiren de içinde.",
        "KIND": "Önbelleğin nasıl tutulduğu: “dynamic” modelin hesapladığı gibi; ötekiler daha az bellekte ve hemen "
        "hemen aynı duyarlıkta.",
        "IN_MEMORY": "Bu sohbetten şu anda bellekte olan. Sohbettekinden çok olabilir: geri alınan da saklanır.",
        "DATABASE": "Bütün sohbetlerde söylenenleri tutan dosya.",
        "SHARED": "Birkaç sohbette ortak olan bir kez saklanır; tek bir sohbet silinince yeri boşalmaz.",
        "SET_ASIDE": "Bozuk bulunan dosyalar; içlerindeki gerektiğinde yeniden hesaplanır.",
        "HIT_RATE": "chatcache açıldığından beri bellekten çıkmış tokenlerin, yeniden hesaplanmayıp diskten gelen "
        "kısmı.",
    }

    def model_default(self, value: str) -> str:
        return f"Otomatik ({value})"

    def limits(self, limits: Limits) -> str:
        low = f"{limits.low:g}".replace(".", ",")
        return f"en az {low}" if limits.high is None else f"{low} ile {limits.high:g} arası"

    def saved_in_chat(self, num_reused: int, num_total: int, saved_s: float | None) -> str:
        reused = f"{self.tokens(num_reused)} (%{self.percent(num_reused, num_total)}) yeniden okunmadan kullanıldı"
        saved = f", yaklaşık {self.seconds(saved_s)} kazanıldı" if saved_s is not None else ""
        return f"{self.IN_THIS_CHAT}: {reused}{saved}."

    def prefetched(self, num_tokens: int, seconds: float) -> str:
        return f"{self.tokens(num_tokens)} {self.seconds(seconds)} içinde diskten geri yüklendi."

    def other_chats(self, num_chats: int) -> str:
        return f"{self.number(num_chats)} başka sohbet"

    def left_out_messages(self, num_messages: int) -> str:
        return f"{self.number(num_messages)} eski ileti dışarıda bırakıldı."

    def quota_use(self, used_bytes: int, quota_bytes: int) -> str:
        return f"{self.size(used_bytes)} / {self.size(quota_bytes)}"

    def share(self, value: float) -> str:
        return f"%{self.number(100 * value)}"

    def smaller_chats(self, num_chats: int) -> str:
        return f"{self.number(num_chats)} daha küçük sohbet"

    def dropped(self, num_bytes: int, num_running: int = 0) -> str:
        said = f"Boşaltıldı; diskte {self.size(num_bytes)} yer açıldı. Metin duruyor."
        if not num_running:
            return said
        return f"{said} Yanıt yazılan {self.number(num_running)} sohbetin önbelleği yanıt bitene kadar bellekte kalır."

    def verifying(self, num_checked: int, num_files: int) -> str:
        return f"Dosya denetleniyor: {self.number(min(num_checked + 1, num_files))} / {self.number(num_files)}…"

    def verified(self, num_files: int, num_bytes: int) -> str:
        return f"Her şey yolunda: {self.number(num_files)} dosya, {self.size(num_bytes)}, hepsi yazıldığı gibi."

    def damaged(self, num_damaged: int, num_files: int) -> str:
        return (
            f"{self.number(num_files)} dosyanın {self.number(num_damaged)} tanesi bozuk. Hiçbir metin kaybolmadı: "
            "içlerindeki, sohbet sürdürülünce yeniden hesaplanır."
        )

    def verify_failed(self, reason: str) -> str:
        return f"Denetim bitirilemedi: {reason}"

    def plan_fits(self, kind: str, left_bytes: int) -> str:
        return f"{kind} önbellekle sığar; {self.size(left_bytes)} kalır."

    def plan_fits_not(self, kind: str, missing_bytes: int) -> str:
        return f"{kind} önbellekle sığmaz: {self.size(missing_bytes)} eksik."

    def plan_memory(self, memory_bytes: int) -> str:
        return f"{self.size(memory_bytes)} kullanılabilir: ağırlıklar ve önbelleklerin bütçesi."

    def plan_up_to(self, num_tokens: int | None) -> str:
        if num_tokens is None:
            return "her bağlam"
        return f"en çok {self.tokens(num_tokens)}" if num_tokens else "hiçbir bağlam"

    def speeds(self, lowest: float, highest: float) -> str:
        digits = 1 if highest < 100 else 0
        return f"{self.number(lowest, digits)} ile {self.number(highest, digits)} arası"

    def earlier(self, seconds: float) -> str:
        return f"{self.whole_seconds(seconds)} önce"

    def curves_in_words(self, curves: Sequence[tuple[str, int]], num_tokens: int) -> str:
        ends = ", ".join(f"{kind} {self.size(num_bytes)}" for kind, num_bytes in curves)
        return f"{self.tokens(num_tokens)} için: {ends}."

    def tokens(self, num_tokens: int) -> str:
        return unbroken(f"{self.number(num_tokens)} token")
