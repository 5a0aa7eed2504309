"""What was refused, or failed, in Turkish: a sentence for every reason that an error of the service can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from chatcache.errors import ChatCacheError, Reason
from chatcache.ui.texts import Texts


class TurkishRefusals(Texts):
    """See the module."""

    REFUSALS: ClassVar[Mapping[str, str]] = {
        Reason.INVALID: "Bu, böyle kullanılamaz; hiçbir şey değiştirilmedi.",
        Reason.EMPTY_MESSAGE: "İleti boş. Göndermek için bir şey yazın.",
        Reason.TOO_FEW_TURNS: "Geri alınabilecek tur sayısı: {num_turns}.",
        Reason.NO_REPLY_YET: "Burada henüz yanıt yok. Önce bir ileti gönderin.",
        Reason.NOT_A_REPLY: "Bu yalnızca modelin yanıtlarıyla yapılabilir; bir yanıt seçin.",
        Reason.OUT_OF_RANGE: "{low} ile {high} arasında bir sayı olmalı.",
        Reason.NOT_A_COUNT: "Bir tam sayı olmalı; en az {low}.",
        Reason.SEED_TOO_LARGE: "Bu kadar büyük olamaz; 2⁶³ sayısından küçük olmalı.",
        Reason.TEMPLATE_REFUSES: "Modelin sohbet şablonu bu sohbeti kabul etmiyor. Hiçbir şey değiştirilmedi.",
        Reason.NOT_IN_BIN: "Yalnızca çöp kutusundaki bir sohbet kalıcı olarak silinebilir; önce silin.",
        Reason.NOT_JSON: "Bu dosya JSON değil. JSON olarak dışa aktarılmış bir dosya seçin.",
        Reason.FOREIGN_FILE: "Bu, chatcache’ten dışa aktarılmış bir sohbet değil. JSON olarak aktarılmış birini seçin.",
        Reason.NEWER_FILE: "Bu sohbet daha yeni bir sürümden dışa aktarılmış. chatcache’i güncelleyin.",
        Reason.DAMAGED_FILE: "Dosya bozuk: {detail}. Hiçbir şey içe aktarılmadı; sohbeti yeniden dışa aktarın.",
        Reason.NOT_FOUND: "Böyle bir sohbet ya da ileti yok. Hiçbir şey değiştirilmedi; sohbetleriniz listede.",
        Reason.IN_BIN: "Bu sohbet çöp kutusunda. Sürdürmek için geri yükleyin.",
        Reason.OTHER_CHAT: "Bu ileti bu sohbette değil.",
        Reason.BUSY: "Bu sohbette bir yanıt yazılıyor. Bitmesini bekleyin ya da önce durdurun.",
        Reason.BUSY_TO_FORK: "Bu yanıt hâlâ yazılıyor. Durdurun ya da bekleyin, sonra yeni sohbet açın.",
        Reason.MOVED_ON: "Bu sohbet başka bir pencerede ilerledi. Hiçbir şey gönderilmedi; bakıp yeniden gönderin.",
        Reason.CONTEXT_FULL: (
            "Bununla sohbet {num_prompt_tokens} token olur; modelin bağlamı yanıtla birlikte {max_context_tokens} "
            "token alır. Hiçbir şey değiştirilmedi. İletiyi kısaltın, bir tur geri gidin ya da yeni bir sohbet açın."
        ),
        Reason.MODEL_UNUSABLE: "Model yüklenemiyor ya da sohbet için kullanılamıyor.",
        Reason.UNSUPPORTED: "Bu seçenek bu modelle, bu aygıtta ya da bu sürümde yok.",
        Reason.NO_THINKING_SWITCH: "Yüklü modelin şablonunda düşünmeyi açıp kapayan bir seçenek yok.",
        Reason.KIND_UNAVAILABLE: "{kind} önbellek türü bu modelle bu aygıtta kullanılamaz. Seçenekler: {kinds}.",
        Reason.DATA_DIR_LOCKED: "Veri klasörü başka bir chatcache tarafından kullanılıyor.",
        Reason.STORAGE_FAILED: "Disk ya da veritabanı hata verdi. Hiçbir şey değiştirilmedi; yeniden deneyin.",
        Reason.DISK_FULL: (
            "Disk dolu; hiçbir şey değiştirilmedi. Saklanan önbellekler varsa yer açar: yeniden deneyin ya da yer açın."
        ),
        Reason.CLOSED: "chatcache kapandı. Sürdürmek için yeniden başlatın; hiçbir şey değiştirilmedi.",
    }

    def refused(self, error: ChatCacheError) -> str:
        return self.said(error.sentence)

    def refused_setting(self, name: str, error: ChatCacheError) -> str:
        return f"{self.SETTING_NAMES[name]}: {self.refused(error)}"
