"""The page's texts in Turkish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from chatcache.ui.chat_days import Span
from chatcache.ui.starting_texts import TurkishStarting
from chatcache.ui.texts import Texts
from chatcache.ui.turkish_panels import TurkishPanels
from chatcache.ui.turkish_told import TurkishTold
from chatcache.ui.turkish_turn import TurkishTurn
from chatcache.ui.turkish_writing import TurkishWriting
from storage.transfer import ImportOutcome


class Turkish(TurkishPanels, TurkishTold, TurkishTurn, TurkishWriting, TurkishStarting, Texts):
    """Türkçe."""

    THOUSANDS = "."
    POINT = ","
    TOKENS_PER_S = "token/sn"
    SECONDS = "sn"
    MINUTES = "dk"

    SKIP_TO_MESSAGE = "İleti kutusuna geç"

    MESSAGE = "İleti"
    MESSAGE_PLACEHOLDER = "Bir ileti yazın"
    SEND = "Gönder"
    STOP = "Durdur"
    REGENERATE = "Yeniden üret"
    ROLL_BACK = "Bir tur geri"
    FORWARD = "Bir tur ileri"
    CONTINUE = "Sürdür"
    FORK = "Buradan yeni sohbet aç"
    FORK_BRIEFLY = "Yeni sohbet"
    PREVIOUS_REPLY = "Önceki yanıt"
    NEXT_REPLY = "Sonraki yanıt"
    PREVIOUS_VERSION = "Önceki sürüm"
    NEXT_VERSION = "Sonraki sürüm"
    PREVIOUS_QUESTION = "İletinizin önceki sürümü"
    NEXT_QUESTION = "İletinizin sonraki sürümü"
    COPY = "Kopyala"
    COPY_CODE = "Kodu kopyala"
    UNDO = "Geri al"
    DISMISS = "Kapat"

    NEW_CHAT = "Yeni sohbet"
    TEMPORARY_CHAT = "Geçici sohbet"
    NOT_STORED = "Saklanmaz"
    TEMPORARY_DETAIL = (
        "Bu sohbetten hiçbir şey saklanmaz: hiçbir listede yer almaz; siz silince ya da chatcache kapanınca yok olur. "
        "O zamana dek adresi ona geri götürür."
    )
    GONE = "Geçici sohbet artık yok; ondan hiçbir şey saklanmamıştı."
    TOGGLE_SIDEBAR = "Kenar çubuğunu aç ya da kapat"
    SEARCH_CHATS = "Sohbetlerde ara"
    CHATS = "Sohbetler"
    RENAME = "Yeniden adlandır"
    PIN = "Sabitle"
    UNPIN = "Sabitlemeyi kaldır"
    DELETE = "Sil"
    EXPORT = "Dışa aktar"
    EXPORT_MARKDOWN = "Markdown olarak dışa aktar"
    IMPORT = "İçe aktar"
    TITLE = "Başlık"
    SAVE_TITLE = "Başlığı kaydet"
    CANCEL = "Vazgeç"
    UNTITLED = "Adsız sohbet"

    SPANS: ClassVar[Mapping[Span, str]] = {
        Span.PINNED: "Sabitlenmiş",
        Span.TODAY: "Bugün",
        Span.YESTERDAY: "Dün",
        Span.WEEK: "Önceki 7 gün",
    }
    MONTHS: ClassVar[Sequence[str]] = (
        "Ocak", "Şubat", "Mart", "Nisan", "Mayıs", "Haziran", "Temmuz", "Ağustos", "Eylül", "Ekim", "Kasım", "Aralık",
    )  # fmt: skip

    OPENING = "Yükleniyor…"
    CONVERSATION = "Konuşma"
    YOU = "Siz"
    MODEL = "Model"
    THINKING = "Düşünüyor"
    THOUGHTS = "Düşünceler"
    SHOW_EARLIER = "Önceki iletileri göster"
    LEFT_OUT = "Bağlam doldu: model bu çizginin üstünde kalanları artık okumuyor."
    EMPTY_REPLY = "Yanıtta metin yok."

    WELCOME = "Ne hakkında konuşmak istersiniz?"
    WELCOME_DETAIL = "Model bu makinede çalışır ve okuduğu her şeyi saklar: her turda yalnızca yeni olan hesaplanır."

    NO_CHATS = "Başlattığınız sohbetler burada görünür."
    SHOW_MORE = "Daha fazla göster"
    IS_ANSWERED = "yanıtlanıyor"
    BIN = "Çöp kutusu"
    BACK_TO_CHATS = "Sohbetlere dön"
    BIN_EMPTY = "Çöp kutusu boş. Sildikleriniz, siz kalıcı olarak kaldırana dek burada bekler."
    RESTORE = "Geri yükle"
    PURGE = "Kalıcı olarak kaldır"
    KEEP = "Kalsın"
    EMPTY_BIN = "Çöp kutusunu boşalt"
    EMPTY_BIN_QUESTION = "Çöp kutusundaki bütün sohbetler kalıcı olarak kaldırılsın mı? Bu geri alınamaz."

    CACHE = "Önbellek"
    CACHE_EMPTY = "Bu sohbet için henüz önbelleğe alınmış bir şey yok. İlk ileti önbelleği doldurur."
    CACHE_IDLE = "Henüz anlatılacak bir yanıt yok."
    CACHE_ON_DISK = "Bu sohbetin önbelleği diskte; sonraki tur onu getirir ve yalnızca yeni olanı hesaplar."
    CACHE_NOWHERE = (
        "Bu sohbetin kendine ait önbelleği ne bellekte ne de diskte; sonraki tur başka sohbetlerle ortak olanı alır, "
        "kalanını okur."
    )
    SHOW_DETAILS = "Ayrıntılar"
    REUSED = "yeniden kullanıldı"
    COMPUTED = "hesaplandı"

    STALE_PAGE = "Bu sohbet başka bir pencerede ilerledi. Hiçbir şey değiştirilmedi; bakıp yeniden deneyin."
    UNKNOWN_SESSION = (
        "Bu adreste bir sohbet yok. Hiçbir şey kaybolmadı: sohbetleriniz listede. İşte yeni bir başlangıç."
    )
    NOT_BEGUN = "Burada henüz bir sohbet yok. Başlatmak için bir ileti gönderin."
    EMPTY_MESSAGE = "Gönderilecek bir şey yok. Önce bir ileti yazın."
    OFFLINE = "Bağlantı koptu. Yazılanlar saklandı; chatcache’e yeniden ulaşılınca bu sayfa kaldığı yerden sürer."
    NOTHING_TO_STOP = "Yanıt zaten bitmişti."
    FILES_GONE = "Dosya artık burada değil. Bir kez daha seçin."
    REPLACE = "Değiştir"
    LOADING = "Model yükleniyor. Gönderdiğiniz ileti, model hazır olur olmaz yanıtlanır."
    UNEXPECTED = "chatcache’te bir şeyler ters gitti. Metniniz duruyor; yeniden deneyin ve sürerse günlüğe bakın."

    PROMPT_SUGGESTIONS = (
        "Anahtar/değer önbelleğinin ne olduğunu üç cümleyle açıkla.",
        "Deniz üzerine kısa bir şiir yaz.",
        "Yağmurlu bir pazar günü için bana üç fikir ver.",
    )

    TTFT = "İlk token süresi"
    RESTORED_IN = "Diskten getirme süresi"
    SPEED = "Hız"
    WRITTEN = "Bu turda yazılan"
    KIND = "Tür"
    IN_MEMORY = "Bellekte"
    ON_DISK = "Diskte"
    CONTEXT = "Bağlam"
    MODEL_NAME = "Model"
    NOTHING = "yok"

    def no_match(self, query: str) -> str:
        return f"“{query}” ile eşleşen sohbet yok."

    def bin(self, num_chats: int, *, are_more: bool) -> str:
        return f"{self.BIN} ({num_chats}{'+' if are_more else ''})" if num_chats else self.BIN

    def purge_question(self, title: str) -> str:
        return f"“{title or self.UNTITLED}” kalıcı olarak kaldırılsın mı? Bu geri alınamaz."

    def purged(self, num_chats: int) -> str:
        return f"{self.number(num_chats)} sohbet kalıcı olarak kaldırıldı."

    def typed(self, num_typed: int, num_left: int | None) -> str:
        if num_left is None:
            return f"{self.tokens(num_typed)} yazıldı"
        if num_left < 0:
            return f"{self.tokens(num_typed)} yazıldı, bağlamda kalandan {self.number(-num_left)} fazla"
        return f"{self.tokens(num_typed)} yazıldı, bağlamda {self.number(num_left)} kaldı"

    def alternative(self, number: int, total: int) -> str:
        return f"{number} / {total}"

    def deleted(self, title: str) -> str:
        return f"“{title or self.UNTITLED}” çöp kutusunda."

    def forked(self, num_ready: int, num_tokens: int) -> str:
        said = "Bu, oradan süren yeni bir sohbet; geldiği sohbet olduğu gibi duruyor."
        if num_ready >= num_tokens:
            return f"{said} {self.tokens(num_tokens)} olduğu gibi kullanılıyor; yeniden okunacak bir şey yok."
        ready, left = self.number(num_ready), self.number(num_tokens - num_ready)
        return f"{said} {self.tokens(num_tokens)} içinden {ready} tanesi hazır, {left} tanesi okunacak."

    def imported(self, title: str, outcome: ImportOutcome) -> str:
        name = f"“{title or self.UNTITLED}”"
        match outcome:
            case ImportOutcome.ADDED:
                return f"{name} içe aktarıldı."
            case ImportOutcome.RESTORED:
                return f"{name} çöp kutusundaydı; olduğu gibi geri alındı."
            case ImportOutcome.REPLACED:
                return f"{name} içe aktarıldı; önceki sohbet çöp kutusunda."
            case ImportOutcome.SKIPPED:
                return f"{name} zaten burada; hiçbir şey değişmedi."

    def imported_files(self, num_added: int, num_known: int, num_refused: int) -> str:
        known = f" {self.number(num_known)} sohbet zaten buradaydı." if num_known else ""
        refused = f" {self.number(num_refused)} dosya kabul edilmedi." if num_refused else ""
        total = self.number(num_added + num_known + num_refused)
        return f"{total} sohbetten {self.number(num_added)} tanesi içe aktarıldı.{known}{refused}"

    NO_CHAT_FILE = "Bir sohbet dosyası, JSON olarak dışa aktarılmış bir dosyadır. Ondan hiçbir şey içe aktarılmadı."

    def file_too_large(self, most_bytes: int) -> str:
        return f"Bir sohbet dosyası en çok {self.size(most_bytes)} olabilir. Ondan hiçbir şey içe aktarılmadı."

    def budget_use(self, num_bytes: int, budget_bytes: int, num_chats: int) -> str:
        chats = f", {self.number(num_chats)} sohbette" if num_chats > 1 else ""
        return f"{self.size(num_bytes)} / {self.size(budget_bytes)}{chats}"

    def context_use(self, num_used: int, num_max: int) -> str:
        return f"{self.number(num_used)} / {self.tokens(num_max)}" if num_used else f"en çok {self.tokens(num_max)}"


TURKISH = Turkish()
