package discovery

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/peering"
)

const anID = peering.ClusterID("abcdefghijklmnopqrstuvwxyz234567")

func TestTextRoundTrips(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Text{
		"all that there is":  {ID: anID, Name: "the office", API: "1-2", Fingerprint: "0123456789abcdef"},
		"no more than an ID": {ID: anID},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := want.Strings()
			if list[0] != "txtvers=1" {
				t.Errorf("the first string is %q", list[0])
			}
			got, err := ParseText(list)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseText(t *testing.T) {
	t.Parallel()
	id := "id=" + string(anID)
	for name, tt := range map[string]struct {
		in   []string
		want Text
		err  string
	}{
		"keys do not depend on case":        {in: []string{"TxtVers=1", "ID=" + string(anID)}, want: Text{ID: anID}},
		"the first of two counts":           {in: []string{id, "name=a", "name=b"}, want: Text{ID: anID, Name: "a"}},
		"a key without a value is ignored":  {in: []string{id, "name", "=x", ""}, want: Text{ID: anID}},
		"keys from later versions are left": {in: []string{id, "color=red"}, want: Text{ID: anID}},
		"a value may hold equals signs":     {in: []string{id, "name=a=b"}, want: Text{ID: anID, Name: "a=b"}},
		"no version is the first":           {in: []string{id}, want: Text{ID: anID}},
		"texts are fit to be shown":         {in: []string{id, "name=\x1b[2Ja\u202eb\xff"}, want: Text{ID: anID, Name: "[2Ja b"}},
		"texts are cut":                     {in: []string{id, "name=" + strings.Repeat("ä", 100)}, want: Text{ID: anID, Name: strings.Repeat("ä", 32)}},
		"another version":                   {in: []string{"txtvers=2", id}, err: `version "2"`},
		"no ID":                             {in: []string{"txtvers=1"}, err: "cluster ID"},
		"not an ID":                         {in: []string{"id=ABC"}, err: "cluster ID"},
		"nothing":                           {err: "cluster ID"},
		"too many strings":                  {in: slicesOf("x", 33), err: "33 strings"},
		"too long":                          {in: slicesOf(strings.Repeat("x", 255), 6), err: "exceeds 1300 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseText(tt.in)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func slicesOf(s string, n int) []string {
	return strings.Split(strings.Repeat(s+"\x00", n-1)+s, "\x00")
}

func FuzzParseText(f *testing.F) {
	f.Add("txtvers=1\x00id=" + string(anID) + "\x00name=x")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseText(strings.Split(s, "\x00"))
		if err != nil {
			return
		}
		again, err := ParseText(got.Strings())
		if err != nil || again != got {
			t.Errorf("%+v is read again as %+v, %v", got, again, err)
		}
	})
}

func TestServiceCheck(t *testing.T) {
	t.Parallel()
	good := func() Service {
		return Service{Instance: "office", Host: "entente-abc", Port: 7443, Text: Text{ID: anID}}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Service){
		"no name":                func(s *Service) { s.Instance = "" },
		"a long name":            func(s *Service) { s.Instance = strings.Repeat("x", 64) },
		"a name of controls":     func(s *Service) { s.Instance = "a\nb" },
		"a host of two labels":   func(s *Service) { s.Host = "a.b" },
		"no host":                func(s *Service) { s.Host = "" },
		"no port":                func(s *Service) { s.Port = 0 },
		"an unspecified address": func(s *Service) { s.Addresses = []netip.Addr{netip.IPv4Unspecified()} },
		"too many addresses":     func(s *Service) { s.Addresses = make([]netip.Addr, 9) },
		"no ID":                  func(s *Service) { s.Text.ID = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := good()
			if spoil(&s); s.Check() == nil {
				t.Error("it may be published")
			}
		})
	}
}

func TestRenameCountsUpWithinTheLimit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 31)
	for in, want := range map[string]string{
		"office":                "office (2)",
		"office (2)":            "office (3)",
		"office (9)":            "office (10)",
		"office (x)":            "office (x) (2)",
		"office (1)":            "office (1) (2)",
		"(2)":                   "(2) (2)",
		strings.Repeat("x", 63): strings.Repeat("x", 59) + " (2)",
		long:                    strings.Repeat("ä", 29) + " (2)",
	} {
		if got := Rename(in); got != want || len(got) > MaxLabel {
			t.Errorf("Rename(%q) = %q of %d bytes, want %q", in, got, len(got), want)
		}
	}
}

func TestRenameHost(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a": "a-2", "a-2": "a-3", "entente-abc": "entente-abc-2", "a-1": "a-1-2", "a-02": "a-02-2"} {
		if got := RenameHost(in); got != want {
			t.Errorf("RenameHost(%q) = %q, want %q", in, got, want)
		}
	}
}
