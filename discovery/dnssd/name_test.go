package dnssd

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestLabelsAreEscapedAsTheCodecDoesAndComeBack(t *testing.T) {
	t.Parallel()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	labels := []string{"office", "the office", `a.b\c"d`, "Büro Köln", "東京", "a;b(c)@d'", `\032`, "1 2", "x\x00y"}
	for i := 0; i < 256; i += 32 {
		labels = append(labels, string(all[i:i+32]))
	}
	for _, label := range labels {
		name := escapeLabel(label) + ".example."
		buf := make([]byte, 300)
		n, err := dns.PackDomainName(name, buf, 0, nil, false)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if got := string(buf[1 : 1+buf[0]]); got != label {
			t.Errorf("%q is %q on the wire", label, got)
		}
		back, _, err := dns.UnpackDomainName(buf[:n], 0)
		if err != nil || back != name {
			t.Errorf("%q comes back as %q, %v", name, back, err)
		}
		if got := unescape(escapeLabel(label)); got != label {
			t.Errorf("unescape gives %q, want %q", got, label)
		}
	}
}

func TestSplitInstance(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ in, label, domain string }{
		"plain":                {"office._entente._tcp.example.com.", "office", "example.com."},
		"spaces and dots":      {`the\ office\.2._entente._tcp.example.com.`, "the office.2", "example.com."},
		"UTF-8":                {`B\195\188ro._Entente._TCP.example.com.`, "Büro", "example.com."},
		"another service":      {in: "office._http._tcp.example.com."},
		"no label":             {in: "_entente._tcp.example.com."},
		"no domain":            {in: "office._entente._tcp."},
		"the root":             {in: "."},
		"a NUL":                {in: `a\000b._entente._tcp.example.com.`},
		"not UTF-8":            {in: `a\255b._entente._tcp.example.com.`},
		"a line break":         {in: `a\010b._entente._tcp.example.com.`},
		"turns the writing":    {in: `a\226\128\174b._entente._tcp.example.com.`},
		"ends with an escape":  {in: `a\`},
		"a label that is long": {in: strings.Repeat("a", 64) + "._entente._tcp.example.com."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			label, domain, err := splitInstance(tt.in)
			if label != tt.label || domain != tt.domain || (err == nil) != (tt.label != "") {
				t.Errorf("splitInstance = %q, %q, %v", label, domain, err)
			}
		})
	}
}

func TestCheckDomain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Example.COM": "example.com.", "example.com.": "example.com.", "lan": "lan.",
		"": "", "a b": "", "exa_mple": "", "10.0.0.1:5": "", "[::1]": "", "::1": "", "192.0.2.1": "", "a..b": "",
		strings.Repeat("a23456789.", 24) + "com": "",
	} {
		if got, err := checkDomain(in); got != want || (err == nil) != (want != "") {
			t.Errorf("checkDomain(%q) = %q, %v", in, got, err)
		}
		if err := CheckDomain(in); (err == nil) != (want != "") {
			t.Errorf("CheckDomain(%q) = %v", in, err)
		}
	}
}
