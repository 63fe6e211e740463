package charttest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

const chart = "../../charts/entente"

// helm returns the path of helm, or skips the test. ENTENTE_CHARTTEST=must makes
// a missing helm a failure.
func helm(t *testing.T) string {
	t.Helper()
	path := helmPath(t)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("ENTENTE_CHARTTEST") == "must" {
			t.Fatal(err)
		}
		t.Skipf("no helm at %s: make builds it for `make test` and `make check`", path)
	}
	return path
}

// template renders the chart. The error has helm's words.
func template(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), helm(t), append([]string{"template", "entente", chart, "--namespace", namespace}, args...)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	return out, nil
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// render returns the chart's objects, read strictly: a field that Kubernetes
// does not know is an error.
func render(t *testing.T, args ...string) objects {
	t.Helper()
	out, err := template(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme(t), serializer.EnableStrict).UniversalDeserializer()
	var found objects
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(out))); ; {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if blank(doc) {
			continue
		}
		obj, gvk, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		o, ok := obj.(client.Object)
		if !ok {
			t.Fatalf("%v is not an object", gvk)
		}
		found = append(found, object{Object: o, kind: gvk.Kind})
	}
}

// object is an object and its kind.
type object struct {
	client.Object
	kind string
}

type objects []object

// one returns the object of a type with a name; without one the test fails.
func one[T client.Object](t *testing.T, from objects, name string) T {
	t.Helper()
	for _, o := range from {
		if typed, ok := o.Object.(T); ok && o.GetName() == name {
			return typed
		}
	}
	var none T
	t.Fatalf("the chart has no %T %q", none, name)
	return none
}

// all returns the objects of a type.
func all[T client.Object](from objects) (found []T) {
	for _, o := range from {
		if typed, ok := o.Object.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// blank reports whether a YAML document has nothing but comments.
func blank(doc []byte) bool {
	for line := range strings.Lines(string(doc)) {
		if line = strings.TrimSpace(line); line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}
