package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// restError is an error as REST has it.
type restError struct {
	Code    int
	Message string
	Details []struct {
		Type            string `json:"@type"`
		Reason, Domain  string
		FieldViolations []struct{ Field, Description string }
	}
}

func readRESTError(t testing.TB, body string) (reason, field, description string) {
	t.Helper()
	var e restError
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for _, d := range e.Details {
		switch {
		case strings.HasSuffix(d.Type, "/google.rpc.ErrorInfo") && d.Domain == "entente.dev":
			reason = d.Reason
		case strings.HasSuffix(d.Type, "/google.rpc.BadRequest") && len(d.FieldViolations) == 1:
			field, description = d.FieldViolations[0].Field, d.FieldViolations[0].Description
		}
	}
	return reason, field, description
}

// TestRESTErrorsNameWhatIsWrongWithARequest is about requests that never get to the
// gRPC server.
func TestRESTErrorsNameWhatIsWrongWithARequest(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("d", 32)))
	header := asAlice()
	header.Set("Content-Type", "application/json")
	const peerings, tokens, office = "/v1/peers/office/peerings", "/v1/tokens", "/v1/peerings/office"
	for name, tc := range map[string]struct {
		method, path, body string
		field, says        string
	}{
		"an unknown field":                    {"POST", tokens, `{"tll":"60s"}`, "tll", "no such field"},
		"one of a message inside":             {"POST", peerings, `{"priceCeiling":{"amount":"1","curency":"EUR"}}`, "price_ceiling.curency", "no such field"},
		"one behind what is longer than byte": {"POST", peerings, "{\"nodeSelector\":{\"ü\":\"€\"},\n \"resorces\":{}}", "resorces", "no such field"},
		"one of an update":                    {"PATCH", office, `{"price":{}}`, "price", "no such field"},
		"one whose name is too long":          {"POST", tokens, `{"` + strings.Repeat("x", 5000) + `\u001b":1}`, strings.Repeat("x", 1000), "no such field"},
		"a wrong type":                        {"POST", tokens, `{"ttl":60}`, "ttl", "60"},
		"a wrong type inside":                 {"POST", peerings, `{"resources":{"amounts":{"cpu":{"a":1}}}}`, `resources.amounts["cpu"]`, ""},
		"a list in place of a message":        {"POST", peerings, `{"resources":[]}`, "resources", ""},
		"a message in place of a list":        {"POST", peerings, `{"storageClasses":[{}]}`, "storage_classes[0]", ""},
		"a number in a list of names":         {"POST", peerings, `{"storageClasses":["a", 7]}`, "storage_classes[1]", ""},
		"a field twice":                       {"POST", peerings, `{"noNetwork":true,"noNetwork":true}`, "no_network", "duplicate"},
		"a field twice by its two names":      {"POST", peerings, `{"noNetwork":true,"no_network":true}`, "no_network", "duplicate"},
		"a malformed duration":                {"POST", tokens, `{"ttl":"an hour"}`, "ttl", "an hour"},
		"a body that is not JSON":             {"POST", tokens, `ttl=60`, "body", "is not JSON"},
		"a body that ends too early":          {"POST", tokens, `{"ttl":"60s"`, "body", "ends too early"},
		"a body with something behind it":     {"POST", tokens, `{"ttl":"60s"}{}`, "body", "follows"},
		"a body that is not an object":        {"POST", tokens, `[]`, "body", ""},
		"a body that is too large":            {"POST", tokens, `{"ttl":"` + strings.Repeat("0", MaxBody) + `1s"}`, "body", "larger than"},
		"a parameter that is not a number":    {"GET", "/v1/peers?pageSize=many", "", "page_size", "many"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body, _ := a.rest(t, tc.method, tc.path, tc.body, header)
			reason, field, says := readRESTError(t, body)
			if code != http.StatusBadRequest || reason != "REQUEST_INVALID" || !strings.HasPrefix(field, tc.field) || !strings.Contains(says, tc.says) || says == "" {
				t.Errorf("got %d %s", code, body)
			}
			if len(field)+len(says) > 3000 || strings.Contains(says, "proto:") || strings.ContainsAny(field+says, "\x1b\u00a0") {
				t.Errorf("it says %q of %q", says, field)
			}
		})
	}
	form := asAlice()
	form.Set("Content-Type", "application/x-www-form-urlencoded")
	code, body, _ := a.rest(t, "POST", tokens, "ttl=60", form)
	if reason, field, _ := readRESTError(t, body); code != http.StatusUnsupportedMediaType || reason != "REQUEST_INVALID" || field != "Content-Type" {
		t.Errorf("a form: got %d %s", code, body)
	}
	code, body, _ = a.rest(t, "GET", "/v1/info", "", http.Header{"Authorization": {"Basic YTpi"}})
	if reason, _, _ := readRESTError(t, body); code != http.StatusUnauthorized || reason != "CALLER_UNKNOWN" {
		t.Errorf("another scheme: got %d %s", code, body)
	}
	if code, body, _ = a.rest(t, "POST", tokens, " \n", header); code != http.StatusOK {
		t.Errorf("an empty body: got %d %s", code, body)
	}
}

// FuzzBodies compares the reader of bodies with the library's: it accepts what the library
// accepts, and refuses everything else, and what is not one value, with a field and a text.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"peer":"peers/a","resources":{"amounts":{"cpu":"1"}}}`, `{"resources":{"amounts":{"cpu":1}}}`, `{"a":{"b":[{"c":1}]}}`,
		`{"storageClasses":["a",{}]}`, `[{"x":[1,2`, "{\n\"é\":1}", `{"priceCeiling":{"x":[]},"duration":"1"}`, `{} x`, `"\ud800"`, "{}\f",
	} {
		f.Add([]byte(seed))
	}
	m := marshaler{&runtime.JSONPb{}}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, want ententev1.CreatePeeringRequest
		err := m.NewDecoder(bytes.NewReader(body)).Decode(&got)
		wants := protojson.Unmarshal(body, &want)
		if wants == nil && err != nil || wants != nil && err == nil {
			t.Fatalf("%q: got %v, the library says %v", body, err, wants)
		}
		if err == nil || len(bytes.Trim(body, jsonSpace)) == 0 {
			return
		}
		if v := (*bodyError)(nil); !errors.As(err, &v) || v.Message == "" {
			t.Errorf("%q: got %v", body, err)
		}
	})
}

// TestAWatchIsAnsweredAtOnce: REST sends the header before the first message, since a caller has
// to know that it was let through.
func TestAWatchIsAnsweredAtOnce(t *testing.T) {
	a := newAdminTest(t)
	transport := &http.Transport{TLSClientConfig: a.tls(), ForceAttemptHTTP2: true, ResponseHeaderTimeout: 30 * time.Second}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"/v1/events:watch", "/v1/peers:watch"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+a.address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = asAlice()
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if diff := cmp.Diff([]any{http.StatusOK, streamType}, []any{resp.StatusCode, resp.Header.Get("Content-Type")}); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
		if resp.Header.Get(watchBegun) != "" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: headers are %v", path, resp.Header)
		}
		_ = resp.Body.Close()
	}
}
