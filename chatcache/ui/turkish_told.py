"""What is told of caches, memory, models and files, in Turkish; and how the sentence for whatever is told or refused
is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from chatcache.told import Told
from chatcache.ui.figures import unbroken
from chatcache.ui.starting_texts import TURKISH_STEPS
from chatcache.ui.turkish_refusals import TurkishRefusals
from storage.sentence import Fact, Sentence
from storage.told import FileTold, SaveTold


class TurkishTold(TurkishRefusals):
    """See the module."""

    TOLD: ClassVar[Mapping[str, str]] = {
        **TURKISH_STEPS,
        Told.CONVERTED: "Bu sohbetin önbelleği bundan sonra {kind} olarak tutuluyor; hiçbir şey yeniden hesaplanmıyor.",
        Told.KIND_REFUSED: "Bu sohbetin {kind} önbellek türü burada kullanılamıyor; yerine {default} kullanılıyor.",
        Told.CANNOT_GUESS: "İstemden tahmin kapalı: yanlış bir tahmin bu sohbetin önbelleğinden geri alınamazdı.",
        Told.RESUMED: "{num_tokens} token {restore_s} içinde diskten geri yüklendi; {num_left} token hesaplanacak.",
        Told.LEFT_OUT: (
            "Bağlam doldu: şimdiye dek okunan en eski {num_messages} ileti bundan sonra dışarıda kalıyor. "
            "{num_left} token hesaplanıyor."
        ),
        Told.MISSED_TEMPLATE: (
            "Modelin şablonu sohbeti {index}. tokenden başlayarak değiştirdi; {num_left} token hesaplanıyor."
        ),
        Told.MISSED_HISTORY: "Sohbet {index}. tokenden sonra başka; {num_left} token hesaplanıyor.",
        Told.MISSED_SMALLER_FORM: (
            "Bellekte yine yer var: bu sohbetin önbelleği yeniden tam duyarlıkta; {index}. tokenden başlayarak "
            "{num_left} token hesaplanıyor."
        ),
        Told.MISSED_KIND: (
            "Bu sohbetin önbelleği artık başka bir türde tutuluyor; {index}. tokenden başlayarak {num_left} token "
            "hesaplanıyor."
        ),
        Told.MISSED_NOT_CROPPABLE: (
            "Bu modelin önbelleği kısaltılamıyor; {index}. tokenden başlayarak {num_left} token hesaplanıyor."
        ),
        Told.REPAIRED: "Model hata verdi: “{failure}” Önbellek onarıldı; {num_tokens} token yeniden hesaplanıyor.",
        Told.FAILED_TWICE: "Model iki kez hata verdi: “{failure}” O ana dek yazılanlar duruyor; yeniden deneyin.",
        Told.ENDED_EARLY: "Yanıt erken bitti: “{failure}” O ana dek yazılanlar duruyor.",
        Told.NOT_FINITE: (
            "Model sonlu olmayan sayılar verdi; bu yüzden token seçilemedi. O ana dek yazılanlar duruyor. Yeniden "
            "deneyin; yine olursa modeli başka bir dtype ile yükleyin."
        ),
        Told.REPLY_NOT_SAVED: "Yanıt henüz saklanamadı: “{failure}” Bu sohbeti sürdürdüğünüzde yeniden denenir.",
        Told.MEMORY_SHORT: "{index}. tokende bellek yetmedi: {step}",
        Told.SPILLED: "boştaki {num_chats} sohbetin önbelleği diske taşındı.",
        Told.SPILLED_UNSAVED: (
            "boştaki {num_chats} sohbetin önbelleği bırakıldı; orada sürdürülünce diskte olmayan yeniden hesaplanır."
        ),
        Told.SPILLED_PARTLY: (
            "boştaki {num_chats} sohbetin önbelleği diske taşındı, {num_unsaved} tanesi sonuna dek değil; orada "
            "sürdürülünce eksik olan yeniden hesaplanır."
        ),
        Told.SPILLED_AHEAD: "boştaki {num_chats} sohbetin sıradaki iletisi için hazır duranlar bellekten çıktı.",
        Told.SHORTENED: "yalnızca son tokenleri gören katmanlar, son turların gerektirdiği kadarını tutuyor.",
        Told.WAITS: "bu yanıt, bir başkası bitince sürer.",
        Told.RETRIED: "kullanılmayan bellek boşaltıldı, adım yineleniyor.",
        Told.RESTORE_RETRIED: "kullanılmayan bellek boşaltıldı, geri yükleme sürüyor.",
        Told.SMALLER_CHUNKS: "istem bundan sonra {num_tokens} tokenlik parçalarla okunuyor.",
        Told.SMALLER_KIND: "bu sohbetin önbelleği artık {kind}.",
        Told.STOPPED: "bu sohbetten {num_tokens} token sığıyor. Yanıt burada biter; olanlar duruyor.",
        Told.RESTORE_DAMAGED: (
            "Saklanan önbellek verisi bozuktu ve kenara ayrıldı; {index}. tokenden sonrası yeniden hesaplanıyor. "
            "(“{failure}”)"
        ),
        Told.RESTORE_FAILED: (
            "Saklanan önbellek verisi kullanılamadı; {index}. tokenden sonrası yeniden hesaplanıyor. (“{failure}”)"
        ),
        Told.LOOKUP_FAILED: "Saklanan önbellek verisine bakılamadı; yeniden hesaplanıyor. (“{failure}”)",
        Told.CANNOT_BE_STORED: (
            "Bu modelin önbellekleri diskte saklanamıyor; yeniden başlatılınca sohbetleri yeniden hesaplanır."
        ),
        Told.SAVED_LATER: "Disk sohbetten yavaş; bu önbelleğin kalanı sonraki turda saklanır.",
        Told.NO_ROOM_TO_SAVE: (
            "Bellek az; bu önbelleğin kalanı sonraki turda ya da önbellek bellekten çıkarken saklanır."
        ),
        Told.HALF_CONVERTED: (
            "Bellek yetmediği için bu önbellek şu anda iki biçimde birden; yeniden tek biçimde olunca saklanır."
        ),
        Told.FORGOTTEN: (
            "Bu önbelleğin bir parçası artık ne bellekte ne de diskte; yeniden başlatılınca yeniden hesaplanır."
        ),
        Told.CHAIN_GONE: "Bu önbelleğin sürdürdüğü parça artık diskte değil; sonraki turda hepsi saklanır.",
        Told.NOT_SAVED: "Bu sohbetin önbelleği saklanamadı; sonraki tur yeniden dener. (“{failure}”)",
        Told.NO_TEMPLATE: (
            "Bu modelin kendi sohbet şablonu yok; bu yüzden yalın bir şablon kullanılıyor. Yanıtlar zayıf olabilir: "
            "belki sohbet için hiç eğitilmedi."
        ),
        Told.MEASURING_WEIGHTS: (
            "{name} modelinin daha küçük ağırlıklarla da aynı şeyi söyleyip söylemediği bir kez ölçülüyor…"
        ),
        Told.IDS_LEFT_OUT: (
            "Bazı yanıtların token numaraları başka bir modelin ya da metinlerinin dediğini demiyor. Metin duruyor, "
            "sohbet sürünce yeniden okunur."
        ),
        Told.WITHOUT_EFFECT: "Saklandı, ama burada etkisi yok: {refusal}",
        Told.NO_STATIC: "önceden ayrılan önbellekler bu sürümde yok",
        Told.NO_ATTENTION: "modelin dikkat katmanı yok; bu yüzden nicelenecek anahtar ve değer de yok",
        Told.NO_PACKAGE: "{package} kurulu değil (pip install --no-deps -r requirements-extra.txt)",
        Told.UNKNOWN_LAYERS: "modelin şu türden katmanları tanınmıyor: {layers}",
        Told.OFFLOADED_ALREADY: "bu, önbelleği bilgisayarın belleğine taşır; işlemcide zaten orada",
        Told.NO_DEVICE_MEMORY: "bunun için kendi belleği olan bir hızlandırıcı (cuda) gerekir; {device} öyle değil",
        Told.ALL_FULL_ATTENTION: "bütün katmanlar tam dikkatli; offloaded türünü seçin",
        Told.OTHER_LAYERS: "bunun için tam dikkatli katmanlar gerekir; modelin öteki katmanları: {layers}",
        Told.SLIDING_LAYERS: (
            "modelin kayan katmanları var, bunlar bütün olarak taşınırdı; offloaded-non-sliding türünü seçin"
        ),
        Told.SMALLER_WEIGHTS: (
            "Ağırlıkları niceleyin: {form} olarak {saved_bytes} daha az, toplam {total_bytes} yer tutarlar."
        ),
        Told.SHORTER_CONTEXT: "Bağlamı kısaltın: {num_tokens} token sığar.",
        Told.SMALLER_CACHE: (
            "Önbelleği niceleyin: {kind} olarak bir sohbet {session_bytes}, hepsi birlikte {total_bytes} yer tutar."
        ),
        Told.BOTH_SMALLER: "int4 ağırlıklar ve {kind} önbellek birlikte {total_bytes} yer tutar.",
        Told.BOTH_SMALLER_AND_SHORTER: (
            "int4 ağırlıklar ve {kind} önbellek birlikte {total_bytes} yer tutar; ikisiyle {num_tokens} tokenlik "
            "bağlam sığar."
        ),
        Told.GROUPED_QUERIES: (
            "Gruplu sorgu dikkati olan bir model seçin: bu model her sorgu başı için bir anahtar ve bir değer tutar; "
            "öyle bir model genellikle bunun dörtte birini ya da daha azını."
        ),
        Told.CHECKPOINT_SMALLER: (
            "Modelin dosyası nicelenmiş: kendi ağırlıkları, burada tam duyarlıkla planlanandan küçüktür."
        ),
        FileTold.NOT_AN_OBJECT: "bir “{what}” nesne değil",
        FileTold.NOT_A_LIST: "“{name}” liste değil",
        FileTold.BAD_ID: "bir “{what}” kaydında “{name}” şu: {value}",
        FileTold.BAD_ROLE: "bir iletinin rolü şu: {value}",
        FileTold.TWICE: "{message} iletisi iki kez var",
        FileTold.OWN_ANCESTOR: "{message} iletisi kendi atası",
        FileTold.NO_PLACE: "{message} iletisinin sohbette uygun bir yeri yok",
        FileTold.OTHER_END: "Sohbetin bittiği yer yanıtları arasında değildi; şimdi sonuncusunda bitiyor.",
        FileTold.UNKNOWN: "Bu sürüm tanımadığı için dışarıda kaldı: bir “{what}” kaydındaki “{name}”.",
        FileTold.UNUSABLE: "Kullanılamadığı için varsayılanı alındı: bir “{what}” kaydındaki “{name}”.",
        FileTold.REPLY_ADDED: "Yanıtı olmayan bir iletiye, sürdürülebilen boş bir yanıt eklendi.",
        FileTold.TURN_LEFT_OUT: "Dışarıda kaldı: dosyadaki hiçbir yanıta ait olmayan bir tur.",
        FileTold.MORE: "Bu dosyada olduğu gibi alınamayan başka şeyler de vardı.",
        SaveTold.DISK_ALMOST_FULL: "Disk neredeyse dolu; kalan yer iletiler için tutuluyor. Biraz yer açın.",
        SaveTold.QUOTA_TOO_SMALL: (
            "Önbelleğin bir parçası {num_bytes}; bu, {quota_bytes} olan disk kotasının tümünden büyük. Kotayı artırın."
        ),
        SaveTold.QUOTA_USED_UP: (
            "{num_bytes} büyüklüğündeki disk kotasını açık sohbetler dolduruyor. Kotayı artırın ya da bir önbelleği "
            "boşaltın."
        ),
        SaveTold.NOT_WRITTEN: "Önbellek diske yazılamadı: “{failure}”.",
        SaveTold.BEGINNING_GONE: "Saklanan başlangıç bu arada kaldırıldı; sonraki kayıt baştan başlar.",
        SaveTold.CHAT_GONE: "Sohbet bu arada kaldırıldı.",
    }

    def said(self, sentence: str) -> str:
        """In Turkish where it is known what it says, and as it is where that cannot be said."""
        return unbroken(self._in_turkish(sentence))

    def _in_turkish(self, sentence: str) -> str:
        if not isinstance(sentence, Sentence) or sentence.reason is None:
            return sentence
        ours = self.TOLD.get(sentence.reason) or self.REFUSALS.get(sentence.reason)
        try:
            return ours.format_map({n: self._fact(n, f) for n, f in sentence.facts.items()}) if ours else str(sentence)
        except (LookupError, ValueError, ArithmeticError):  # a file may bring a sentence with other facts
            return str(sentence)

    def _fact(self, name: str, value: Fact) -> str:
        if isinstance(value, str):
            return self.said(value)
        if name.endswith("_bytes"):
            return self.size(int(value))
        if name.endswith("_s"):
            return self.seconds(float(value))
        return self.number(value) if isinstance(value, int) else f"{value:g}".replace(".", self.POINT)
