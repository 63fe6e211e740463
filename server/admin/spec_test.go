package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/servertest"
)

// method is a method of the AdminService as the proto has it.
type method struct {
	name, full string
	// permission is what its comment says: "create tokens".
	permission string
	// verb and path are its REST form.
	verb, path string
	stream     bool
}

// methods reads the specification: the proto and its comments.
func methods(t testing.TB) []method {
	t.Helper()
	source, err := os.ReadFile("../../proto/entente/v1/admin.proto")
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	for _, m := range regexp.MustCompile(`((?:  //[^\n]*\n)+)  rpc (\w+)\(`).FindAllStringSubmatch(string(source), -1) {
		comments[m[2]] = strings.Join(strings.Fields(strings.ReplaceAll(m[1], "//", "")), " ")
	}
	need := regexp.MustCompile(`Permission: (\w+ \w+)`)
	service := ententev1.File_entente_v1_admin_proto.Services().ByName("AdminService")
	var out []method
	for i := range service.Methods().Len() {
		d := service.Methods().Get(i)
		m := method{name: string(d.Name()), full: "/" + string(service.FullName()) + "/" + string(d.Name()), stream: d.IsStreamingServer()}
		found := need.FindStringSubmatch(comments[m.name])
		if found == nil {
			t.Fatalf("the comment of %s names no permission", m.name)
		}
		m.permission = found[1]
		m.verb, m.path = restOf(t, d)
		out = append(out, m)
	}
	if len(out) < 29 {
		t.Fatalf("only %d methods: the test would prove little", len(out))
	}
	return out
}

func restOf(t testing.TB, d protoreflect.MethodDescriptor) (verb, path string) {
	t.Helper()
	rule, _ := proto.GetExtension(d.Options(), annotations.E_Http).(*annotations.HttpRule)
	for v, p := range map[string]string{"GET": rule.GetGet(), "POST": rule.GetPost(), "PUT": rule.GetPut(), "PATCH": rule.GetPatch(), "DELETE": rule.GetDelete()} {
		if p != "" {
			return v, p
		}
	}
	t.Fatalf("%s has no REST form", d.Name())
	return "", ""
}

func TestPermissionsAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	for _, m := range methods(t) {
		got, ok := permissions(m.full, nil)
		if !ok || len(got) == 0 {
			t.Errorf("no caller may call %s", m.name)
			continue
		}
		if p := got[0].verb + " " + got[0].resource; p != m.permission || len(got) > 1 {
			t.Errorf("%s needs %v, and its comment says %q", m.name, got, m.permission)
		}
		verb, _, _ := strings.Cut(m.permission, " ")
		if want := verb != "get" && verb != "list"; mutates(m.full) != want {
			t.Errorf("%s: changes something is %v, want %v", m.name, !want, want)
		}
	}
	if _, ok := permissions("/entente.v1.AdminService/Other", nil); ok || mutates("/entente.v1.AdminService/Other") {
		t.Error("a method that is not known has a permission")
	}
}

// TestPermissionsAreForTheNamedObject is about roles with resourceNames.
func TestPermissionsAreForTheNamedObject(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	for _, tc := range []struct {
		method  string
		request any
		want    string
	}{
		{ententev1.AdminService_GetPeer_FullMethodName, &ententev1.GetPeerRequest{Name: "peers/office"}, "get foreignclusters.entente.dev office"},
		{ententev1.AdminService_GetPeer_FullMethodName, &ententev1.GetPeerRequest{Name: "peers/" + id}, "get foreignclusters.entente.dev"},
		{ententev1.AdminService_ApprovePeer_FullMethodName, &ententev1.ApprovePeerRequest{Name: "peers/office"}, "update foreignclusters.entente.dev office"},
		{ententev1.AdminService_DenyPeer_FullMethodName, &ententev1.DenyPeerRequest{Name: "peers/" + id}, "update foreignclusters.entente.dev"},
		{ententev1.AdminService_RotatePresharedKey_FullMethodName, &ententev1.RotatePresharedKeyRequest{Name: "peers/office"}, "update foreignclusters.entente.dev office"},
		{ententev1.AdminService_RotatePresharedKey_FullMethodName, &ententev1.RotatePresharedKeyRequest{Name: "peers/-"}, "update foreignclusters.entente.dev"},
		{ententev1.AdminService_RevokeToken_FullMethodName, &ententev1.RevokeTokenRequest{Name: "tokens/abc"}, "delete tokens.entente.dev abc"},
		{ententev1.AdminService_GetPeering_FullMethodName, &ententev1.GetPeeringRequest{Name: "peerings/a"}, "get peeringrequests.entente.dev a"},
		{ententev1.AdminService_UpdatePeering_FullMethodName, &ententev1.UpdatePeeringRequest{Peering: &ententev1.Peering{Name: "peerings/a"}}, "update peeringrequests.entente.dev a"},
		{ententev1.AdminService_DeletePeering_FullMethodName, &ententev1.DeletePeeringRequest{Name: "peerings/a"}, "delete peeringrequests.entente.dev a"},
		{ententev1.AdminService_ApprovePeeringRequest_FullMethodName, &ententev1.ApprovePeeringRequestRequest{Name: "peers/office/requests/7"}, "update foreignclusters.entente.dev office"},
		{ententev1.AdminService_DenyPeeringRequest_FullMethodName, &ententev1.DenyPeeringRequestRequest{Name: "peers/" + id + "/requests/7"}, "update foreignclusters.entente.dev"},
		{ententev1.AdminService_GetContract_FullMethodName, &ententev1.AdminServiceGetContractRequest{Name: "contracts/k1"}, "get contracts.entente.dev k1"},
		{ententev1.AdminService_TerminateContract_FullMethodName, &ententev1.AdminServiceTerminateContractRequest{Name: "contracts/k1"}, "update contracts.entente.dev k1"},
		{ententev1.AdminService_ListOffloadings_FullMethodName, &ententev1.ListOffloadingsRequest{}, "list namespaceoffloadings.entente.dev"},
		{ententev1.AdminService_UnoffloadNamespace_FullMethodName, &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/shop"}, "delete namespaceoffloadings.entente.dev in namespace shop"},
	} {
		got, ok := permissions(tc.method, tc.request)
		if !ok || len(got) != 1 || got[0].String() != tc.want {
			t.Errorf("%s: %v, want %s", tc.method, got, tc.want)
		}
	}
}

// TestEachMethodIsReachableByREST calls each method by its REST form and reads in the log which
// gRPC method was called.
func TestEachMethodIsReachableByREST(t *testing.T) {
	a := newAdminTest(t, peerObject("x", strings.Repeat("a", 32)))
	var description struct {
		Paths      map[string]map[string]map[string]any `json:"paths"`
		Components struct {
			SecuritySchemes map[string]any `json:"securitySchemes"`
		} `json:"components"`
		Security []map[string]any `json:"security"`
	}
	_, body, _ := a.rest(t, "GET", "/openapi.json", "", nil)
	if err := json.Unmarshal([]byte(body), &description); err != nil {
		t.Fatal(err)
	}
	if len(description.Security) != 2 || len(description.Components.SecuritySchemes) != 2 {
		t.Errorf("how to authenticate is described as %v", description.Components.SecuritySchemes)
	}
	described := map[string]map[string]any{}
	for path, item := range description.Paths {
		for verb, op := range item {
			op["path"], op["verb"] = path, strings.ToUpper(verb)
			described[op["operationId"].(string)] = op
		}
	}
	variable := regexp.MustCompile(`\{[^=}]+=([^}]+)\}`)
	for _, m := range methods(t) {
		t.Run(m.name, func(t *testing.T) {
			path := variable.ReplaceAllStringFunc(m.path, func(v string) string {
				return strings.ReplaceAll(variable.FindStringSubmatch(v)[1], "*", "x")
			})
			header, content := asAlice(), ""
			if m.verb != "GET" && m.verb != "DELETE" {
				header.Set("Content-Type", "application/json")
				content = "{}"
			}
			header.Set("X-Request-Id", "rest-"+m.name)
			if m.stream {
				a.restStream(t, path, header, func(*http.Response) {})
			} else if code, body, _ := a.rest(t, m.verb, path, content, header); code == http.StatusNotImplemented || code == http.StatusMethodNotAllowed || code == http.StatusInternalServerError {
				t.Errorf("%s %s: %d %s", m.verb, path, code, body)
			}
			want := `"call":"rest-` + m.name + `","method":"` + strings.TrimPrefix(m.full, "/") + `","who":"alice"`
			if !waittest.Soon(func() bool { return strings.Contains(a.log.String(), want) }) {
				t.Errorf("%s %s did not call %s", m.verb, path, m.name)
			}
			op := described["AdminService_"+m.name]
			if op == nil || op["verb"] != m.verb {
				t.Fatalf("it is described as %v", op)
			}
			if summary, _ := op["summary"].(string); !strings.Contains(summary, m.name) {
				t.Errorf("its summary is %q", summary)
			}
			// As many variables as the path has, each said to be the open part only.
			open := strings.Count(op["path"].(string), "{")
			parameters, _ := op["parameters"].([]any)
			for _, p := range parameters {
				if p := p.(map[string]any); p["in"] == "path" {
					open--
					if d, _ := p["description"].(string); !strings.HasPrefix(d, "What follows ") {
						t.Errorf("parameter %v is described as %q", p["name"], d)
					}
				}
			}
			if open != 0 {
				t.Errorf("%d variables of %s are not described", open, op["path"])
			}
			content200, _ := json.Marshal(op["responses"].(map[string]any)["200"])
			kind := "application/json"
			if m.stream {
				kind = streamType
			}
			if !bytes.Contains(content200, []byte(`{"`+kind+`":`)) {
				t.Errorf("its answer is described as %s", content200)
			}
		})
	}
}

// restStream begins a watch, calls check with its response, and ends it.
func (a *adminTest) restStream(t testing.TB, path string, header http.Header, check func(*http.Response)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	transport := &http.Transport{TLSClientConfig: a.tls(), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	defer time.AfterFunc(servertest.Patience, cancel).Stop()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Errorf("a watch is not answered: %v", err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	check(resp)
}

func TestRequestsHaveBounds(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)))
	c := a.alice(t)
	long := strings.Repeat("a", 100_000)
	for name, call := range map[string]func() error{
		"a filter of contracts": func() error {
			_, err := c.ListContracts(t.Context(), &ententev1.ListContractsRequest{Peer: "peers/" + long})
			return err
		},
		"a filter of usage": func() error {
			_, err := c.ListUsage(t.Context(), &ententev1.ListUsageRequest{Contract: "contracts/" + long})
			return err
		},
		"a label": func() error {
			_, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office", NodeSelector: map[string]string{long: "x"}})
			return err
		},
		"a label of peers": func() error {
			_, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/-", PeerSelector: map[string]string{"x": long}})
			return err
		},
		"a class": func() error {
			_, err := c.CreatePeering(t.Context(), &ententev1.CreatePeeringRequest{Peer: "peers/office", StorageClasses: []string{long}})
			return err
		},
		"an endpoint": func() error {
			_, err := c.IntroducePeer(t.Context(), &ententev1.IntroducePeerRequest{Endpoint: long + ":1"})
			return err
		},
		"a page token": func() error {
			_, err := c.ListTokens(t.Context(), &ententev1.ListTokensRequest{PageToken: long})
			return err
		},
	} {
		if err := call(); wire.ReasonOf(err) != peering.ReasonRequestInvalid || len(err.Error()) > 4096 {
			t.Errorf("%s of a hundred thousand characters: got %.200s", name, err)
		}
	}
}
