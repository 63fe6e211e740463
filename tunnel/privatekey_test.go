package tunnel

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestThePrivateKeyIsNeverPrinted(t *testing.T) {
	private := privateKey{1, 2, 3}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "private", private)
	data, err := json.Marshal(struct{ A privateKey }{private})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fmt.Sprint(private), fmt.Sprintf("%v %+v %#v %x %s %d", private, private, private, private, private, private), log.String(), string(data),
	} {
		if !strings.Contains(text, "[redacted]") || strings.Contains(text, "AQID") || strings.Contains(text, "1 2 3") || strings.Contains(text, "010203") || strings.Contains(text, "0x1, 0x2") {
			t.Errorf("printed: %s", text)
		}
	}
}
