package wire

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAmountsThatTakeForEverToDecodeAreRefused(t *testing.T) {
	spec := func(s string) string {
		return `{"spec":{"containers":[{"name":"c","env":[{"name":"COMMIT","value":"12e4567890"}],"resources":` + s + `}]}}`
	}
	for in, ok := range map[string]bool{
		spec(`{"requests":{"cpu":"1","memory":"1Ei","a.b/c":"2e3"},"limits":{"cpu":1.5e3}}`): true,
		spec(`{}`): true,
		spec(`{"requests":{"cpu":"1e2147483647"}}`):                false,
		spec(`{"requests":{"cpu":"0E-2147483647"}}`):               false,
		spec(`{"limits":{"cpu":1e999}}`):                           false,
		spec(`{"Limits":{"cpu":"1e999"}}`):                         false,
		spec(`{"limits":{"cpu":"1e999"},"limits":{"cpu":"1"}}`):    false,
		spec(`{"limits":{"cpu":"1e99999999999999999999999"}}`):     false,
		`{"volumes":[{"emptyDir":{"sizeLimit":"1e999999999"}}]}`:   false,
		`{"resourceFieldRef":{"divisor":"1e-999999999"}}`:          false,
		`{"l\u0069mits":{"cpu":"\u0031e999"}}`:                     false,
		`{"a":"\\","b":["\"",null, true ,-1.5e3],"limits":{}}`:     true,
		`{"limits":{"a":"\\\"","cpu":1e999}}`:                      false,
		` [ 1e999 , {"limits" : {"cpu" : 1e999 } } ] `:             false,
		`{"limits":{"cpu":"1"}`:                                    false,
		`{"overhead":{"cpu":"` + strings.Repeat("9", 1000) + `"}}`: false,
		strings.Repeat("[", 5000):                                  false,
	} {
		if err := CheckQuantities([]byte(in)); (err == nil) != ok {
			t.Errorf("%.80s: %v", in, err)
		}
	}
}

// TestEveryAmountOfAPodIsChecked fails when a version of Kubernetes adds a field with an amount
// that CheckQuantities does not know.
func TestEveryAmountOfAPodIsChecked(t *testing.T) {
	seen := map[reflect.Type]bool{}
	found := 0
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			field := f.Type
			if field.Kind() == reflect.Pointer {
				field = field.Elem()
			}
			switch {
			case field == reflect.TypeFor[resource.Quantity]():
				found++
				if !isAmount(name) {
					t.Errorf("%s.%s is an amount and not checked", typ, name)
				}
			case field == reflect.TypeFor[corev1.ResourceList]():
				found++
				if !hasAmounts(name) {
					t.Errorf("%s.%s has amounts and is not checked", typ, name)
				}
			case field.Kind() == reflect.Map && field.Elem() == reflect.TypeFor[resource.Quantity]():
				found++
				if !hasAmounts(name) {
					t.Errorf("%s.%s has amounts and is not checked", typ, name)
				}
			default:
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec]())
	walk(reflect.TypeFor[corev1.PodStatus]())
	if found < 6 {
		t.Errorf("only %d amounts found", found)
	}
}

// FuzzCheckQuantities: what it lets through, decodes.
func FuzzCheckQuantities(f *testing.F) {
	f.Add([]byte(`{"containers":[{"resources":{"requests":{"cpu":"1e3"}}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if CheckQuantities(b) == nil {
			var spec corev1.PodSpec
			_ = json.Unmarshal(b, &spec)
		}
	})
}
