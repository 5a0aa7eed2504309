"""The texts of editing, of the message box and of a reply's figures, in Turkish. Part of `turkish.Turkish`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from chatcache.stats import FinishReason
from chatcache.ui.writing_texts import WritingTexts


class TurkishWriting(WritingTexts):
    """Türkçe."""

    REGENERATE_THIS = "Bu yanıtı yeniden üret"
    EDIT = "Düzenle"
    EDIT_QUESTION = "İletiyi düzenle"
    EDIT_REPLY = "Yanıtı düzenle"
    EDIT_QUESTION_HINT = "Burada yeni bir dal başlar; şimdi yazılı olan saklanır."
    EDIT_REPLY_HINT = "Yanıtın yeni bir sürümü; model onu kendi sözü olarak okur. Eskisi saklanır."
    ALL_ROLLED_BACK = "İlk iletinin öncesine döndünüz."
    REGENERATED_FURTHER_UP = (
        "Bu yanıttan sonra gelenler önceki sürümüyle birlikte saklanıyor: yanıtın altındaki ‹ oku onlara geri götürür."
    )
    EDIT_MOVED = "Düzenlediğiniz ileti artık burada görünmüyor. Metniniz ileti kutusunda; hiçbir şey gönderilmedi."
    FOUND_IN_ANOTHER_VERSION = "Bulunan ileti bu sohbetin başka bir sürümünde. Artık o sürüm gösteriliyor."
    FOUND_BESIDE_A_REPLY = (
        "Bulunan ileti bu sohbetin başka bir sürümünde. Şu anki yanıtın yazılması bitince gösterilebilir."
    )
    FOUND_IN_THE_BIN = "Bulunan ileti sohbetin başka bir sürümünde. Sohbeti geri yüklemek sizi ona götürür."
    MESSAGE_WAITS = (
        "Bir yanıt hâlâ yazılıyor. İletiniz kutuda duruyor: yanıt bitince gönderin ya da yanıtı şimdi durdurun."
    )
    SAVE = "Kaydet"
    SAVE_AND_SEND = "Kaydet ve gönder"

    SHOW_ALL = "Tümünü göster"
    SHOW_LESS = "Daha az göster"
    ATTACH = "Metin dosyası ekle"
    CHAT_MENU = "Sohbet menüsü"
    SHORTCUTS = "Klavye kısayolları"
    CLOSE = "Kapat"
    KEY_SEND = "Gönder"
    KEY_NEW_LINE = "Yeni satır"
    KEY_EDIT_LAST_HERE = "Son iletinizi düzenle (kutu boşken)"
    KEY_EDIT_LAST = "Son iletinizi düzenle"
    KEY_STOP = "Durdur; düzenlemeden çık"
    KEY_FOCUS = "İleti kutusuna git"
    KEY_SAVE_EDIT = "Düzenlemeyi kaydet"
    KEY_LIST = "Bu liste"

    PROMPT = "Okunan"
    REUSED_TOKENS = "Yeniden kullanılan"
    COMPUTED_TOKENS = "Hesaplanan"
    GUESSED = "Önceden tahmin edilen"
    CACHE_KIND = "Önbellek türü"
    SEED = "Tohum"
    SAMPLING = "Örnekleme"
    ENDED = "Bitiş"
    WRITTEN_AT = "Yazılma zamanı"

    FINISH_NAMES: ClassVar[Mapping[FinishReason, str]] = {
        FinishReason.STOP: "kendiliğinden",
        FinishReason.LENGTH: "izin verilen en büyük uzunlukta",
        FinishReason.CANCELLED: "durduruldu",
        FinishReason.CONTEXT_FULL: "bağlam doldu",
        FinishReason.INTERRUPTED: "kesildi",
        FinishReason.ERROR: "bir hata yüzünden",
    }

    BUSY = "Bu sohbette bir yanıt yazılıyor. Hiçbir şey değişmedi; durdurun ya da bekleyin, sonra yeniden deneyin."

    def rolled_back(self, num_turns: int, *, is_before_typed: bool) -> str:
        many = f"{num_turns:,}".replace(",", ".")
        went = "Bir tur geri gidildi. O turun" if num_turns == 1 else f"{many} tur geri gidildi. İlkinin"
        where = ", yazdıklarınızın önünde" if is_before_typed else ""
        return f"{went} iletisi kutuda{where}; hiçbir şey atılmadı."

    def lines(self, num_lines: int) -> str:
        return f"{num_lines:,} satır".replace(",", ".")

    def text_file_too_large(self, name: str) -> str:
        return f"“{name}” 256\N{NO-BREAK SPACE}KiB’den büyük, bir iletiye sığmaz. Hiçbir şey eklenmedi."

    def text_file_refused(self, name: str) -> str:
        return f"“{name}” UTF-8 metni değil, bu yüzden bir iletiye eklenemez."
