package v1alpha1_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// One object that an agent cannot decode stops every list of its kind: no object of the kind is read any more. So
// the API server must not store one. These types decode less than the schemas that are generated for them allow.
func TestNoObjectIsStoredThatCannotBeDecoded(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../charts/entente/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("find the custom resource definitions: %d, %v", len(files), err)
	}
	found := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		obj, err := scheme.New(v1alpha1.GroupVersion.WithKind(crd.Spec.Names.Kind))
		if err != nil {
			t.Fatal(err)
		}
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		for _, part := range []string{"Spec", "Status"} {
			field, ok := reflect.TypeOf(obj).Elem().FieldByName(part)
			if !ok {
				continue
			}
			name := strings.ToLower(part)
			s := schema.Properties[name]
			w := decoding{t: t, spec: part == "Spec", byHand: part == "Spec" && !slices.Contains(byAgents, crd.Spec.Names.Kind), found: found}
			w.walk(crd.Spec.Names.Kind+"."+name, field.Type, &s, nil)
		}
	}
	for _, kind := range []string{"duration", "amount", "time", "integer"} {
		if found[kind] == 0 {
			t.Errorf("no field is a %s: this test does not see what it is for", kind)
		}
	}
}

// byAgents is the kinds that only agents write.
var byAgents = []string{"Contract", "FabricNode", "NodeDiscovery", "OffloadedPod", "Tunnel"}

// decoding walks the types and schemas of a part of an object.
type decoding struct {
	t    *testing.T
	spec bool
	// byHand means that administrators and users write the part, and not agents.
	byHand bool
	found  map[string]int
}

// walk visits a type, its schema, and that of the map or list that it is in.
func (w decoding) walk(path string, typ reflect.Type, s, outer *apiextensionsv1.JSONSchemaProps) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch typ {
	case reflect.TypeFor[metav1.Duration]():
		w.need(path, "duration", slices.ContainsFunc(s.XValidations, func(r apiextensionsv1.ValidationRule) bool {
			return strings.Contains(r.Rule, "self.matches(") && strings.Contains(r.Rule, "duration(self) <= ") && r.Message != ""
		}))
		return
	case reflect.TypeFor[resource.Quantity]():
		if !w.byHand {
			return // agents write only what they decoded
		}
		w.need(path, "amount", outer != nil && slices.ContainsFunc(outer.XValidations, func(r apiextensionsv1.ValidationRule) bool {
			return strings.Contains(r.Rule, "self[r].charAt(i) in ['e', 'E']") && r.Message != ""
		}))
		return
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		if w.spec { // what is observed is written by agents, who encode it
			w.need(path, "time", s.Pattern != "")
		}
		return
	}
	switch typ.Kind() {
	case reflect.Struct:
		for f := range typ.Fields() {
			w.field(path, f, s)
		}
	case reflect.Map:
		if s.AdditionalProperties != nil {
			w.walk(path+"{}", typ.Elem(), s.AdditionalProperties.Schema, s)
		}
	case reflect.Slice:
		if s.Items != nil {
			w.walk(path+"[]", typ.Elem(), s.Items.Schema, s)
		}
	case reflect.Int32:
		if w.spec {
			w.need(path, "integer", s.Minimum != nil && s.Maximum != nil)
		}
	}
}

func (w decoding) field(path string, f reflect.StructField, s *apiextensionsv1.JSONSchemaProps) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		w.walk(path, f.Type, s, nil)
		return
	}
	if p, ok := s.Properties[name]; ok {
		w.walk(path+"."+name, f.Type, &p, nil)
	}
}

// need reports a field whose schema lets in what does not decode.
func (w decoding) need(path, kind string, ok bool) {
	w.found[kind]++
	if !ok {
		w.t.Errorf("%s: the schema has no rule by which each %s decodes", path, kind)
	}
}
