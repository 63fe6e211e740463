package admin

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

var update = flag.Bool("update", false, "rewrite the table of methods in docs/api.md")

const apiDoc = "../../docs/api.md"

func readDoc(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(apiDoc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTheDocumentHasEachMethod compares the table of methods with the proto.
func TestTheDocumentHasEachMethod(t *testing.T) {
	const begin, end = "<!-- begin: methods. Made by `go test ./server/admin -run TestTheDocument -update`. -->\n", "<!-- end: methods -->\n"
	source, err := os.ReadFile("../../proto/entente/v1/admin.proto")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("\n| method | REST | permission | |\n| --- | --- | --- | --- |\n")
	variable := regexp.MustCompile(`\{[^=}]+=([^}]+)\}`)
	for _, m := range methods(t) {
		comment := regexp.MustCompile(`((?:  //[^\n]*\n)+)  rpc ` + m.name + `\(`).FindSubmatch(source)[1]
		text := strings.Join(strings.Fields(strings.ReplaceAll(string(comment), "//", "")), " ")
		text, _, _ = strings.Cut(strings.TrimPrefix(text, m.name+" "), " Permission: ")
		text, _, _ = strings.Cut(text, ". ")
		path := variable.ReplaceAllStringFunc(m.path, func(v string) string {
			name := variable.FindStringSubmatch(v)[1]
			// The last star is what the collection before it is named by.
			return strings.ReplaceAll(name, "*", "NAME")
		})
		path = strings.ReplaceAll(path, "/requests/NAME", "/requests/ID")
		fmt.Fprintf(&table, "| `%s` | `%s %s` | %s | %s |\n", m.name, m.verb, path, m.permission, strings.TrimSuffix(text, "."))
	}
	table.WriteByte('\n')
	doc := readDoc(t)
	before, rest, ok1 := strings.Cut(doc, begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("docs/api.md has lost the marks around its table of methods")
	}
	if *update {
		if err := os.WriteFile(apiDoc, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(was, table.String()); diff != "" {
		t.Errorf("docs/api.md (-is +should be; -update rewrites it)\n%s", diff)
	}
}

// TestTheDocumentHasEachReason compares the tables of reasons with package peering: each reason
// is there once, with its code.
func TestTheDocumentHasEachReason(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../peering/error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" && len(spec.Values) == 1 {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			code := wire.Code(peering.Reason(value))
			want[value] = fmt.Sprintf("%s %d", strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(code.String(), "${1}_$2")), runtime.HTTPStatusFromCode(code))
		}
		return true
	})
	if len(want) < 50 {
		t.Fatalf("only %d reasons were found: the test would prove little", len(want))
	}
	got := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([A-Z_]+) \\| (\\d+) \\| (.+) \\|$").FindAllStringSubmatch(readDoc(t), -1) {
		if got[row[1]] != "" {
			t.Errorf("%s is there twice", row[1])
		}
		got[row[1]] = row[2] + " " + row[3]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/api.md (-package wire +document)\n%s", diff)
	}
}

// TestManifestsAndBodiesOfTheDocumentAreValid reads each manifest and each body of a call as
// the API would.
func TestManifestsAndBodiesOfTheDocumentAreValid(t *testing.T) {
	doc := readDoc(t)
	blocks := regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(doc, -1)
	validate, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	manifests, calls := 0, 0
	for _, block := range blocks {
		switch block[1] {
		case "yaml":
			for manifest := range strings.SplitSeq(block[2], "---\n") {
				manifests++
				checkManifest(t, manifest)
			}
		case "console":
			for line := range strings.Lines(block[2]) {
				request, body := requestOf(t, strings.TrimSpace(line))
				if request == nil {
					continue
				}
				calls++
				if err := protojson.Unmarshal([]byte(body), request); err != nil {
					t.Errorf("%s: %v", line, err)
				} else if err := validate.Validate(request); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
		case "json":
			if !json.Valid([]byte(block[2])) {
				t.Errorf("no JSON: %s", block[2])
			}
		}
	}
	if manifests < 4 || calls < 15 {
		t.Errorf("only %d manifests and %d calls were found: the test would prove little", manifests, calls)
	}
}

func checkManifest(t *testing.T, manifest string) {
	t.Helper()
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal([]byte(manifest), &kind); err != nil {
		t.Errorf("%v in\n%s", err, manifest)
		return
	}
	var object any
	switch kind.Kind {
	case "ForeignCluster":
		object = &v1alpha1.ForeignCluster{}
	case "PeeringRequest":
		object = &v1alpha1.PeeringRequest{}
	default:
		t.Errorf("a manifest of kind %q", kind.Kind)
		return
	}
	if err := yaml.UnmarshalStrict([]byte(manifest), object); err != nil || kind.APIVersion != v1alpha1.GroupVersion.String() {
		t.Errorf("%s: %v in\n%s", kind.APIVersion, err, manifest)
	}
}

// requestOf returns the message that a line of the document sends, from its path, query and body,
// or nil for a line that calls no method.
func requestOf(t *testing.T, line string) (proto.Message, string) {
	t.Helper()
	body := ""
	if m := regexp.MustCompile(`-d '([^']*)'`).FindStringSubmatch(line); m != nil {
		body = m[1]
	}
	if m := regexp.MustCompile(`entente\.v1\.AdminService/(\w+)$`).FindStringSubmatch(line); m != nil {
		return newRequest(t, m[1]), body
	}
	m := regexp.MustCompile(`^call .*"\$API([^"]+)"`).FindStringSubmatch(line)
	if m == nil {
		return nil, ""
	}
	verb := http.MethodGet
	if body != "" {
		verb = http.MethodPost
	}
	if x := regexp.MustCompile(`-X (\w+)`).FindStringSubmatch(line); x != nil {
		verb = x[1]
	}
	path, query, _ := strings.Cut(m[1], "?")
	variable := regexp.MustCompile(`\{([a-z._]+)=([^}]+)\}`)
	for _, method := range methods(t) {
		pattern := variable.ReplaceAllStringFunc(method.path, func(v string) string {
			return "(" + strings.ReplaceAll(variable.FindStringSubmatch(v)[2], "*", "[^/:]+") + ")"
		})
		found := regexp.MustCompile("^" + pattern + "$").FindStringSubmatch(path)
		if found == nil || method.verb != verb {
			continue
		}
		fields := map[string]any{}
		if body != "" {
			if err := json.Unmarshal([]byte(body), &fields); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		if len(found) > 1 {
			name := variable.FindStringSubmatch(method.path)[1]
			if outer, _, nested := strings.Cut(name, "."); nested {
				fields["name"] = found[1]
				fields = map[string]any{outer: fields}
			} else {
				fields[name] = found[1]
			}
		}
		for pair := range strings.SplitSeq(query, "&") {
			if key, value, ok := strings.Cut(pair, "="); ok {
				fields[key] = value
			}
		}
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return newRequest(t, method.name), string(bytes.TrimSpace(text))
	}
	t.Errorf("%s: no method has %s %s", line, verb, path)
	return nil, ""
}

func newRequest(t *testing.T, method string) proto.Message {
	t.Helper()
	m := ententev1.File_entente_v1_admin_proto.Services().ByName("AdminService").Methods().ByName(protoreflect.Name(method))
	if m == nil {
		t.Fatalf("there is no method %s", method)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}
