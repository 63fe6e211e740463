package dnssd

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// Names are fully qualified, in lower case, and escaped as [dns.UnpackDomainName] does
// it, so that equal names are equal strings.

// canonical returns a name in the form in which names are compared.
func canonical(name string) string { return dns.CanonicalName(name) }

// CheckDomain checks that clusters can be looked up and published in a domain. The error may be
// shown to users.
func CheckDomain(domain string) error {
	_, err := checkDomain(domain)
	return err
}

// checkDomain returns a configured domain in the form of canonical. Domains must have the form of
// host names; internationalised ones have to be in their ASCII form.
func checkDomain(domain string) (string, error) {
	_, notAddress := netip.ParseAddr(domain)
	if err := peering.CheckEndpoint(domain + ":1"); err != nil || notAddress == nil || strings.ContainsAny(domain, ":[]") {
		return "", fmt.Errorf("domain %q is not a DNS name", peering.Text(domain, maxProblem))
	}
	name := canonical(domain)
	if len(serviceName(name))+discovery.MaxLabel+1 > 254 {
		return "", fmt.Errorf("domain %q is too long for a service below it", peering.Text(domain, maxProblem))
	}
	return name, nil
}

func serviceName(domain string) string { return discovery.ServiceType + "." + domain }

func automaticName(domain string) string {
	return discovery.SubtypeAutomatic + "._sub." + serviceName(domain)
}

func metaName(domain string) string { return "_services._dns-sd._udp." + domain }

// escapeLabel returns a label in the form of a name (RFC 1035 section 5.1), and escapeText a string
// in the codec's form of a TXT record.
func escapeLabel(label string) string { return escape(label, `. '@;()"\`) }

func escapeText(s string) string { return escape(s, `"\`) }

func escape(s, special string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case strings.IndexByte(special, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03d`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// unescape returns the bytes of an escaped label, or of a string of a TXT record.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		if i++; i+2 < len(s) && isDigit(s[i]) && isDigit(s[i+1]) && isDigit(s[i+2]) {
			b.WriteByte((s[i]-'0')*100 + (s[i+1]-'0')*10 + s[i+2] - '0')
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// splitInstance splits the name of an instance into its label, as users see it, and the domain of
// its service. It fails for names that are not those of an instance of the service, or are not
// printable.
func splitInstance(name string) (label, domain string, err error) {
	at := 0
	for at < len(name) && name[at] != '.' {
		if name[at] == '\\' {
			at++
		}
		at++
	}
	if at >= len(name) {
		return "", "", fmt.Errorf("malformed instance name %s", show(name))
	}
	domain, ok := strings.CutPrefix(strings.ToLower(name[at+1:]), discovery.ServiceType+".")
	if !ok || domain == "" {
		return "", "", fmt.Errorf("malformed instance name %s: not one of %s", show(name), discovery.ServiceType)
	}
	label = unescape(name[:at])
	if label == "" || len(label) > discovery.MaxLabel || !utf8.ValidString(label) || peering.Text(label, discovery.MaxLabel) != label {
		return "", "", fmt.Errorf("%s has a name that is not printable", show(name))
	}
	return label, domain, nil
}

// show makes a name from elsewhere printable and clips it: escapes make it ASCII.
func show(name string) string { return peering.Text(name, maxProblem/2) }
