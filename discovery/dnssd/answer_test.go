package dnssd

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

func TestTTLsAreClamped(t *testing.T) {
	t.Parallel()
	q := question{"a.example.com.", dns.TypeA}
	for name, tt := range map[string]struct {
		answer, ns []string
		rcode      int
		want       time.Duration
	}{
		"as it is":                {answer: []string{"a.example.com. 300 A 10.1.0.1"}, want: 5 * time.Minute},
		"the lower one of two":    {answer: []string{"a.example.com. 300 A 10.1.0.1", "a.example.com. 100 A 10.1.0.2"}, want: 100 * time.Second},
		"an alias's":              {answer: []string{"a.example.com. 60 CNAME b.test.", "b.test. 300 A 10.1.0.2"}, want: time.Minute},
		"none":                    {answer: []string{"a.example.com. 0 A 10.1.0.1"}, want: minTTL},
		"a week":                  {answer: []string{"a.example.com. 604800 A 10.1.0.1"}, want: maxTTL},
		"the highest bit means 0": {answer: []string{"a.example.com. 2147483648 A 10.1.0.1"}, want: minTTL},
		"a negative answer, by the SOA's minimum": {ns: []string{"example.com. 3600 SOA ns. h. 1 2 3 4 120"}, want: 2 * time.Minute},
		"a negative answer, by the SOA's TTL":     {ns: []string{"example.com. 90 SOA ns. h. 1 2 3 4 1200"}, rcode: dns.RcodeNameError, want: 90 * time.Second},
		"a negative answer, for long":             {ns: []string{"example.com. 86400 SOA ns. h. 1 2 3 4 86400"}, want: maxNegativeTTL},
		"a negative answer without an SOA":        {want: minTTL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: tt.rcode}, Answer: rrs(t, tt.answer...), Ns: rrs(t, tt.ns...)}
			a, err := read(q, Reply{Msg: m}, "example.com.")
			if err != nil || a.ttl != tt.want {
				t.Errorf("got %s, %v, want %s", a.ttl, err, tt.want)
			}
		})
	}
}

func TestAFailureSaysWhatWasAsked(t *testing.T) {
	t.Parallel()
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeRefused}}
	if _, err := read(question{"a.example.com.", dns.TypeSRV}, Reply{Msg: m}, "example.com."); err == nil || err.Error() != "a.example.com. SRV: the resolver returned REFUSED" {
		t.Errorf("got %v", err)
	}
}

// manyRecords is a message with n pointers of a few bytes each.
func manyRecords(n int) []byte {
	m := new(dns.Msg)
	m.SetQuestion("_entente._tcp.example.com.", dns.TypePTR)
	m.Response = true
	raw, err := m.Pack()
	if err != nil {
		panic(err)
	}
	for i := range n {
		raw = append(raw, 0xc0, headerSize, 0, byte(dns.TypePTR), 0, 1, 0, 0, 0, 60, 0, 6, 3, byte('a'+i%26), byte('a'+i/26%26), byte('a'+i/676%26), 0xc0, headerSize)
	}
	binary.BigEndian.PutUint16(raw[6:], uint16(n))
	return raw
}

func TestRecordsBeyondTheLimitAreCountedNotRead(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, maxAnswerRecords, maxAnswerRecords + 1, 3500} {
		m, leftOut, err := parse(manyRecords(n))
		if err != nil || len(m.Answer) != min(n, maxAnswerRecords) || leftOut != max(0, n-maxAnswerRecords) {
			t.Errorf("%d: %d read, %d left out, %v", n, len(m.Answer), leftOut, err)
		}
	}
	// Counts that lie cost no more than the bytes that are there.
	lie := manyRecords(1)
	binary.BigEndian.PutUint16(lie[6:], 65535)
	if _, _, err := parse(lie); err == nil {
		t.Error("65535 records in 18 bytes are taken")
	}
}

// FuzzAnswer takes any bytes as the answer to each question in turn: nothing panics, all limits
// hold, and all results may be dialled and shown.
func FuzzAnswer(f *testing.F) {
	pack := func(qname string, qtype uint16, lines ...string) []byte {
		m := new(dns.Msg)
		m.SetQuestion(qname, qtype)
		m.Response = true
		for _, l := range lines {
			rr, err := dns.NewRR(l)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer = append(m.Answer, rr)
			m.Extra = append(m.Extra, rr)
		}
		m.Compress = true
		raw, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		return raw
	}
	const ptr, inst, host = "_entente._tcp.example.com.", "office._entente._tcp.example.com.", "office.example.com."
	f.Add(pack(ptr, dns.TypePTR, service("office")...))
	f.Add(pack(ptr, dns.TypePTR, ptr+" 0 PTR "+ptr, inst+" 0 SRV 0 0 1 "+inst, inst+" 2147483648 A 127.0.0.1"))
	f.Add(pack(ptr, dns.TypePTR, ptr+" 60 CNAME "+inst, inst+" 60 CNAME "+ptr))
	f.Add(pack(ptr, dns.TypePTR, ptr+` 60 PTR a\000\255b._entente._tcp.example.com.`, ptr+` 60 PTR B\195\188ro._entente._tcp.example.com.`, ptr+" 60 PTR .", ptr+" 60 PTR a."))
	f.Add(pack(inst, dns.TypeSRV, inst+" 60 SRV 0 0 0 .", inst+" 60 SRV 0 0 7443 office.example.com."))
	f.Add(pack(inst, dns.TypeTXT, inst+` 60 TXT "id=`+string(idA)+`" "\000" "=" ""`))
	f.Add(pack(host, dns.TypeAAAA, host+" 60 AAAA ::ffff:127.0.0.1", host+" 60 AAAA 64:ff9b::a9fe:a9fe"))
	f.Add(manyRecords(maxAnswerRecords + 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > dns.MaxMsgSize {
			return // No transport carries it.
		}
		m, leftOut, err := parse(raw)
		if err != nil {
			return
		}
		if len(m.Answer) > maxAnswerRecords || len(m.Ns) > maxAuthorityRecords || len(m.Extra) > maxExtraRecords || leftOut < 0 {
			t.Fatalf("%d, %d, %d records", len(m.Answer), len(m.Ns), len(m.Extra))
		}
		answers(m, newQuery(dns.Question{Name: ptr, Qtype: dns.TypePTR, Qclass: dns.ClassINET}))
		p := testPlan("example.com.")
		now := start
		// With 512 instances in an answer each step walks all of them: enough to ask for some.
		for range 60 {
			a, ok := p.take(now)
			if !ok {
				now = p.next()
				if now.Sub(start) > 3*time.Minute {
					break
				}
				continue
			}
			got, err := read(a.question, Reply{Msg: m, LeftOut: leftOut}, a.domain)
			if err != nil {
				p.failed(a, err, now)
				continue
			}
			if got.ttl < minTTL || got.ttl > maxTTL {
				t.Fatalf("TTL %s", got.ttl)
			}
			p.answered(a, got, now)
		}
		if n := len(p.domains["example.com."].entries); n > 2+MaxInstances*(2+2*maxTargets) {
			t.Fatalf("%d questions", n)
		}
		d, _ := p.snapshot("example.com.", now)
		if len(d.Found) > MaxInstances || len(d.Problems) > maxProblems {
			t.Fatalf("%d found, %d problems", len(d.Found), len(d.Problems))
		}
		for _, s := range append(d.Problems, d.Err) {
			if len(s) > maxProblem || peering.Text(s, maxProblem) != s {
				t.Fatalf("%q is not printable", s)
			}
		}
		for _, f := range d.Found {
			if f.ID == "" || len(f.Endpoints) == 0 || peering.CheckEndpoints(f.Endpoints) != nil || peering.Text(f.Instance, discovery.MaxLabel) != f.Instance || strings.Contains(strings.Join(f.Endpoints, ""), "127.0.0.1") {
				t.Fatalf("found %+v", f)
			}
		}
	})
}

// FuzzKey takes any bytes as a file with a key.
func FuzzKey(f *testing.F) {
	f.Add([]byte("key \"a\" {\n\talgorithm hmac-sha256;\n\tsecret \"" + secretWide + "\";\n};\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		k, err := ParseKey(raw)
		if err == nil && (k.secret == nil || len(k.secret()) < minSecret || hashOf(k.algorithm) == nil) {
			t.Fatalf("%v", k)
		}
	})
}
