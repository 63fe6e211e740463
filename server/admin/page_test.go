package admin

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// TestPagesAreWhole is about what lists promise: a row that is there all the time
// comes exactly once, in order, whatever comes and goes between pages.
func TestPagesAreWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfDistinct(rapid.StringMatching(`[a-z][a-z0-9./-]{0,12}`), func(s string) string { return s })
		stay := keys.Draw(t, "stay")
		size := rapid.Int32Range(0, 5).Draw(t, "size")
		token, got := "", []string(nil)
		for pages := 0; ; pages++ {
			passing := rapid.SliceOfN(rapid.StringMatching(`[a-z][a-z0-9]{0,3}~`), 0, 4).Draw(t, "passing")
			rows := append(slices.Clone(stay), passing...)
			slices.Sort(rows)
			rows = slices.Compact(rows)
			part, next, err := page(&ententev1.ListPeersRequest{PageSize: size, PageToken: token}, "x", rows, func(s *string) string { return *s })
			if err != nil {
				t.Fatal(err)
			}
			if size > 0 && len(part) > int(size) {
				t.Fatalf("%d rows, more than %d", len(part), size)
			}
			got = append(got, part...)
			if token = next; token == "" {
				break
			}
			if len(token) > 512 {
				t.Fatalf("a token of %d characters", len(token))
			}
			if pages > 10*len(stay)+100 {
				t.Fatal("the pages have no end")
			}
		}
		if !slices.IsSortedFunc(got, cmp.Compare[string]) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("rows came twice or out of order: %q", got)
		}
		for _, s := range stay {
			if !slices.Contains(got, s) {
				t.Fatalf("%q never came: %q", s, got)
			}
		}
	})
}

func TestThePageSizeHasBounds(t *testing.T) {
	t.Parallel()
	rows := make([]int, 2*MaxPageSize)
	for i := range rows {
		rows[i] = i
	}
	key := func(i *int) string { return fmt.Sprintf("%06d", *i) }
	for size, want := range map[int32]int{0: DefaultPageSize, 1: 1, MaxPageSize: MaxPageSize, MaxPageSize + 1: MaxPageSize, 1 << 30: MaxPageSize} {
		part, next, err := page(&ententev1.ListPeersRequest{PageSize: size}, "x", rows, key)
		if err != nil || len(part) != want || next == "" {
			t.Errorf("page size %d: got %d rows, %q, %v; want %d", size, len(part), next, err, want)
		}
	}
	part, next, err := page(&ententev1.ListPeersRequest{}, "x", rows[:0], key)
	if err != nil || len(part) != 0 || next != "" {
		t.Errorf("of nothing: got %v %q %v", part, next, err)
	}
}

func TestTheLongestKeyFitsAToken(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("p", 253) + "/requests/" + strings.Repeat("r", 64)
	token := pageToken("requests of peers/"+strings.Repeat("p", 253), key)
	if len(token) > 512 {
		t.Errorf("%d characters, more than the proto allows", len(token))
	}
	if got, err := parsePageToken("requests of peers/"+strings.Repeat("p", 253), token); err != nil || got != key {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestHostilePageTokens(t *testing.T) {
	t.Parallel()
	good := pageToken("peers", "office")
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	change := func(f func([]byte) []byte) string { return base64.RawURLEncoding.EncodeToString(f(slices.Clone(raw))) }
	for name, token := range map[string]string{
		"of another list":         pageToken("tokens", "office"),
		"of another version":      change(func(b []byte) []byte { b[0]++; return b }),
		"of a list made up":       change(func(b []byte) []byte { b[3] ^= 1; return b }),
		"without a key":           change(func(b []byte) []byte { return b[:1+pageScope] }),
		"cut off":                 change(func(b []byte) []byte { return b[:5] }),
		"with a key too long":     change(func(b []byte) []byte { return append(b, make([]byte, maxPageKey)...) }),
		"that is not text":        change(func(b []byte) []byte { return append(b, 0xff, 0xfe) }),
		"padded":                  good + "==",
		"with a line break":       good[:4] + "\n" + good[4:],
		"in the other alphabet":   "++++" + good,
		"with bits left over":     good[:len(good)-1] + "_",
		"that is a path":          "../../../etc/passwd",
		"that is a name":          "office",
		"that is only a NUL":      "\x00",
		"that is a million bytes": strings.Repeat("A", 1<<20),
	} {
		after, err := parsePageToken("peers", token)
		if wire.ReasonOf(err) != peering.ReasonRequestInvalid || after != "" {
			t.Errorf("a token %s: got %q, %v", name, after, err)
		}
		if err != nil && (strings.Contains(err.Error(), "office") || len(err.Error()) > 200) {
			t.Errorf("a token %s: the error repeats it: %v", name, err)
		}
	}
}

func FuzzPageToken(f *testing.F) {
	f.Add("peers", "")
	f.Add("peers", pageToken("peers", "office"))
	f.Add("tokens", pageToken("peers", "office"))
	f.Add("peers", "AgAAAAAAAAAAAAAAAAAA")
	f.Add("requests of peers/-", pageToken("requests of peers/-", "office/requests/1"))
	f.Fuzz(func(t *testing.T, list, token string) {
		after, err := parsePageToken(list, token)
		if err != nil {
			if wire.ReasonOf(err) != peering.ReasonRequestInvalid {
				t.Fatalf("got %v", err)
			}
			return
		}
		if token == "" {
			return
		}
		// A token that is accepted is the one that would have been issued: there are no two spellings.
		if again := pageToken(list, after); again != token {
			t.Fatalf("%q means %q, which is written %q", token, after, again)
		}
		if len(after) > maxPageKey {
			t.Fatalf("a key of %d bytes", len(after))
		}
	})
}
