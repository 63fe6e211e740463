package homeapi

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/entente-dev/entente/peering"
)

// clean takes away what says who asks: that is home's to say. What a proxy before the API
// server would say is never believed of a pod either.
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

// checkRequest says why a request is not passed on; nil if it is. After an upgrade a connection
// is not requests any more, and nobody could say which pod's they are.
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

// hasToken says whether a list of tokens, as in a Connection header, has one.
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
