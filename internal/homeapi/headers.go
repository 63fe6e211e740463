package homeapi

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/entente-dev/entente/peering"
)

// clean removes headers that identify the caller, which only home may set, and those of a proxy,
// which a pod must not set either.
func clean(h http.Header) {
	for name := range h {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if canonical == "Authorization" || canonical == "Proxy-Authorization" || canonical == "Cookie" ||
			strings.HasPrefix(canonical, "Impersonate-") || strings.HasPrefix(canonical, "X-Remote-") || strings.HasPrefix(canonical, "X-Forwarded-") ||
			canonical == "Forwarded" || canonical == "X-Real-Ip" {
			delete(h, name)
		}
	}
}

// checkRequest returns why a request is not passed on, or nil. Upgrades are refused: after one,
// the connection has no separate requests any more that could be checked.
func checkRequest(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect:
		return peering.Errorf(peering.ReasonRequestInvalid, "the API of home is not a proxy")
	case r.Header.Get("Upgrade") != "" || hasToken(r.Header.Values("Connection"), "upgrade"):
		return peering.Errorf(peering.ReasonPolicyRefused, "exec, attach, port-forward and other upgrades do not pass from a pod abroad to its home's API server; run them at home")
	case r.URL.Host != "" && r.URL.Scheme != "":
		return peering.Errorf(peering.ReasonRequestInvalid, "a request names a path and no other server")
	case !strings.HasPrefix(r.URL.Path, "/"):
		return peering.Errorf(peering.ReasonRequestInvalid, "the path of a request begins with a slash")
	}
	return nil
}

// hasToken reports whether a list of tokens, as in a Connection header, has a token.
func hasToken(values []string, token string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}
