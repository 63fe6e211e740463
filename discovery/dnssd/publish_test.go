package dnssd

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

func TestZoneIsReadBackAsTheRecords(t *testing.T) {
	t.Parallel()
	for _, instance := range []string{"office", "the office", "v1.2", `a "quoted" \ one; (x) @`, "Büro", "東京", strings.Repeat("ä", 31)} {
		s := office()
		s.Instance = instance
		want, err := Records(s, "Example.com.", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Zone(s, "Example.com.", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		var got []dns.RR
		z := dns.NewZoneParser(strings.NewReader(text), "", "")
		for rr, ok := z.Next(); ok; rr, ok = z.Next() {
			got = append(got, rr)
		}
		if z.Err() != nil || len(got) != len(want) {
			t.Fatalf("%q: %d records, %v\n%s", instance, len(got), z.Err(), text)
		}
		// The plan finds the same service, so nothing was lost.
		p := testPlan("example.com.")
		answerAll(t, p, &world{records: got}, start)
		d, _ := p.snapshot("example.com.", start)
		if len(d.Found) != 1 || d.Found[0].Instance != instance || d.Found[0].Text != s.Text || !d.Found[0].Automatic {
			t.Errorf("%q comes back as %+v", instance, d)
		}
	}
}

func TestRecordsRefuseWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*discovery.Service)
		domain string
		ttl    time.Duration
		err    string
	}{
		"no instance":                {change: func(s *discovery.Service) { s.Instance = "" }, err: "instance"},
		"a line break":               {change: func(s *discovery.Service) { s.Instance = "a\n@ NS evil.test." }, err: "not printable"},
		"a host with a dot":          {change: func(s *discovery.Service) { s.Host = "a.b" }, err: "not a DNS label"},
		"an address that none dials": {change: func(s *discovery.Service) { s.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")} }, err: "loopback"},
		"no domain":                  {domain: "not a domain", err: "not a DNS name"},
		"a domain that is too long":  {domain: strings.Repeat("a23456789.", 20) + "com", err: "too long"},
		"a short TTL":                {ttl: time.Second, err: "TTL"},
		"a long TTL":                 {ttl: 1000 * time.Hour, err: "TTL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, domain, ttl := office(), "example.com", time.Hour
			if tt.change != nil {
				tt.change(&s)
			}
			if tt.domain != "" {
				domain = tt.domain
			}
			if tt.ttl != 0 {
				ttl = tt.ttl
			}
			if _, err := Zone(s, domain, ttl); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	statement := func(name, algorithm, secret string) string {
		return fmt.Sprintf("key %q {\n\talgorithm %s;\n\tsecret %q;\n};\n", name, algorithm, secret)
	}
	for name, tt := range map[string]struct{ in, err string }{
		"as tsig-keygen prints it": {in: statement("office", "hmac-sha256", secretNarrow)},
		"on one line":              {in: `key office { secret ` + secretWide + `; algorithm HMAC-SHA512; };`},
		"with a comment":           {in: "// for the office\n" + statement("office", "hmac-sha384", secretNarrow)},
		"MD5":                      {in: statement("office", "hmac-md5", secretWide), err: "hmac-sha256"},
		"SHA-1":                    {in: statement("office", "hmac-sha1", secretWide), err: "hmac-sha256"},
		"a short secret":           {in: statement("office", "hmac-sha256", "c2hvcnQ="), err: "5 bytes"},
		"not base64":               {in: statement("office", "hmac-sha256", secretWide+"A"), err: "not base64"},
		"no name":                  {in: `{ algorithm hmac-sha256; secret "` + secretWide + `"; };`, err: "want key"},
		"nothing":                  {err: "want key"},
		"too long":                 {in: strings.Repeat(" ", maxKeyFile+1), err: "exceeds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, err := ParseKey([]byte(tt.in))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || leaks(err.Error()) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || k.Name() != "office." {
				t.Errorf("got %v, %v", k, err)
			}
		})
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	k := mustKey(t, "office", "hmac-sha256", secretWide)
	holder := struct{ inner Key }{k}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
		fmt.Fprintf(&out, verb+"\n", k)
		fmt.Fprintf(&out, verb+"\n", &k)
		fmt.Fprintf(&out, verb+"\n", holder)
		fmt.Fprintf(&out, verb+"\n", signer{k})
	}
	j, _ := json.Marshal(map[string]any{"key": k})
	out.Write(j)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "key", k, "holder", holder)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "key", k, "holder", holder)
	if leaks(out.String()) {
		t.Errorf("the secret is in %s", out.String())
	}
	if raw, _ := base64.StdEncoding.DecodeString(secretWide); !leaks(fmt.Sprintf("%v", raw)) || !leaks(fmt.Sprintf("%x", raw)) || !leaks(string(raw)) {
		t.Error("the test would not see it")
	}
}

func TestVerdictFollowsTheCodeOfASignedReply(t *testing.T) {
	t.Parallel()
	k := mustKey(t, "office", "hmac-sha256", secretWide)
	now := start
	for name, tt := range map[string]struct {
		rcode, tsig int
		unsigned    bool
		verify      error
		update      bool
		err         string
	}{
		"success":                         {},
		"success, not signed":             {unsigned: true, err: "not signed"},
		"success, badly signed":           {verify: dns.ErrSig, err: "not signed"},
		"success, signed at another time": {verify: dns.ErrTime, err: "set the clocks right"},
		"no such name":                    {rcode: dns.RcodeNameError},
		"a prerequisite does not hold":    {rcode: dns.RcodeYXRrset, update: true, err: "changes while"},
		"a prerequisite, not signed":      {rcode: dns.RcodeNXRrset, update: true, unsigned: true, err: "not signed"},
		"BADKEY":                          {rcode: dns.RcodeNotAuth, tsig: dns.RcodeBadKey, err: "does not know key office"},
		"BADSIG":                          {rcode: dns.RcodeNotAuth, tsig: dns.RcodeBadSig, err: "another secret"},
		"BADTIME":                         {rcode: dns.RcodeNotAuth, tsig: dns.RcodeBadTime, err: "2026-01-01T00:00:00Z"},
		"NOTAUTH":                         {rcode: dns.RcodeNotAuth, unsigned: true, err: "not authoritative"},
		"REFUSED":                         {rcode: dns.RcodeRefused, unsigned: true, err: "update-policy"},
		"NOTIMP":                          {rcode: dns.RcodeNotImplemented, unsigned: true, err: "by hand"},
		"NOTZONE":                         {rcode: dns.RcodeNotZone, err: "outside of the zone"},
		"SERVFAIL":                        {rcode: dns.RcodeServerFailure, err: "log"},
		"FORMERR":                         {rcode: dns.RcodeFormatError, err: "understand"},
		"an unknown code":                 {rcode: 3841, err: "RCODE 3841"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: tt.rcode, Response: true}}
			if tt.update {
				m.Opcode = dns.OpcodeUpdate
			}
			if !tt.unsigned {
				m.Extra = []dns.RR{&dns.TSIG{Hdr: dns.RR_Header{Name: "office.", Rrtype: dns.TypeTSIG}, Error: uint16(tt.tsig)}}
			}
			err := verdict(m, tt.verify, k, now)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

// Whatever a zone has, publishing and then withdrawing leaves others' records as they
// were.
func TestChangesTouchNothingOfOthers(t *testing.T) {
	t.Parallel()
	mine, err := Records(office(), "example.com", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	inst := "office._entente._tcp.example.com."
	others := rrs(t, "_entente._tcp.example.com. 300 PTR other._entente._tcp.example.com.",
		"_automatic._sub._entente._tcp.example.com. 300 PTR other._entente._tcp.example.com.",
		"other._entente._tcp.example.com. 300 SRV 0 0 1 other.example.com.", "other.example.com. 300 A 10.7.7.7")
	for name, tt := range map[string]struct {
		have  []dns.RR
		error error
		empty bool
	}{
		"nothing there":                       {},
		"others there":                        {have: others},
		"all there":                           {have: append(slices.Clone(others), mine...), empty: true},
		"older records of one's own":          {have: append(rrs(t, inst+` 60 TXT "id=`+string(idA)+`"`, inst+" 60 SRV 0 0 1 office.example.com.", "office.example.com. 60 A 10.9.9.9"), others...)},
		"the instance is another's":           {have: rrs(t, inst+` 60 TXT "id=`+string(idB)+`"`), error: errInstanceTaken},
		"the instance has a foreign text":     {have: rrs(t, inst+` 60 TXT "hello"`), error: errInstanceTaken},
		"the instance has a host and no text": {have: rrs(t, inst+` 60 SRV 0 0 1 x.test.`), error: errInstanceTaken},
		"the host is another's":               {have: rrs(t, "office.example.com. 60 A 10.9.9.9"), error: errHostTaken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			have := content{}
			for _, rr := range tt.have {
				q := question{canonical(rr.Header().Name), rr.Header().Rrtype}
				have[q] = append(have[q], rr)
			}
			ch, err := have.publish(office(), "example.com.", mine)
			if !errors.Is(err, tt.error) {
				t.Fatalf("got %v, want %v", err, tt.error)
			}
			if err != nil {
				if !have.withdraw(office(), "example.com.").empty() && errors.Is(err, errInstanceTaken) {
					t.Error("withdraw removes records of another")
				}
				return
			}
			if ch.empty() != tt.empty {
				t.Errorf("change %+v", ch)
			}
			for _, rr := range slices.Concat(ch.remove, ch.removePointers, have.withdraw(office(), "example.com.").remove) {
				if strings.Contains(rr.String(), "other") {
					t.Errorf("removes %s", rr)
				}
			}
			if len(ch.present)+len(ch.absent) == 0 {
				t.Error("no prerequisite")
			}
			for _, rr := range ch.addPointers {
				if have := have[question{canonical(rr.Header().Name), dns.TypePTR}]; len(have) > 0 && rr.Header().Ttl != have[0].Header().Ttl {
					t.Errorf("%s changes the TTL of others", rr)
				}
			}
			if _, err := ch.message("example.com.").Pack(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFailuresMakeTriesRarer(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{0: refreshEvery, 1: updateRetryMin, 2: 2 * updateRetryMin, 9: updateRetryMax, 1 << 20: updateRetryMax} {
		seen := map[time.Duration]bool{}
		for range 100 {
			pause := Pause(failures)
			if pause > want || pause < want*4/5 {
				t.Errorf("%s after %d failures, want up to a fifth less than %s", pause, failures, want)
			}
			seen[pause] = true
		}
		if len(seen) < 50 {
			t.Errorf("after %d failures there are %d different pauses of 100", failures, len(seen))
		}
	}
}
