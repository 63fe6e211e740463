package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/entente-dev/entente/peering"
)

// CheckQuantities refuses Kubernetes JSON in which an amount of a resource is
// written with an exponent beyond any that there can be. Decoding such an amount,
// "1e999999999", keeps a processor busy for hours, so this comes before decoding
// anything from outside that may hold one. It looks at the members that hold
// amounts in a PodSpec or PodStatus, wherever they stand. It refuses lists of more
// elements than there can be as well: an empty container takes a kilobyte.
func CheckQuantities(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	// frame is an object or array that is open. For an object, key is that of the
	// member being read, or empty between members.
	type frame struct {
		object, inMember bool
		key              string
	}
	var stack []frame
	elements := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read JSON: %w", err)
		}
		top := len(stack) - 1
		if s, ok := tok.(string); ok && top >= 0 && stack[top].object && !stack[top].inMember {
			stack[top].key, stack[top].inMember = s, true
			continue
		}
		if end := tok == json.Delim(']') || tok == json.Delim('}'); !end && top >= 0 && !stack[top].object {
			if elements++; elements > maxJSONElements {
				return fmt.Errorf("the lists in the JSON have more than %d elements", maxJSONElements)
			}
		}
		switch t := tok.(type) {
		case json.Delim:
			if t == '{' || t == '[' {
				if len(stack) >= maxJSONDepth {
					return fmt.Errorf("the JSON nests deeper than %d", maxJSONDepth)
				}
				stack = append(stack, frame{object: t == '{'})
				continue
			}
			stack = stack[:top]
			top--
		case string, json.Number:
			amount := top >= 0 && holdsAmount(stack[top].key) || top >= 1 && holdsAmounts(stack[top-1].key)
			if s := fmt.Sprint(t); amount && !plainQuantity(s) {
				return fmt.Errorf("quantity %s is out of range", strconv.Quote(peering.Text(s, maxAmountLen)))
			}
		}
		if top >= 0 {
			stack[top].inMember = false
		}
	}
}

// holdsAmount says whether a member is an amount. The case of names does not
// matter to encoding/json, so it does not here.
func holdsAmount(key string) bool {
	return slices.ContainsFunc([]string{"sizeLimit", "divisor", "quantity", "perPod", "perContainer"}, func(name string) bool { return strings.EqualFold(key, name) })
}

// holdsAmounts says whether a member is a list of amounts by resource.
func holdsAmounts(key string) bool {
	return slices.ContainsFunc([]string{"requests", "limits", "overhead", "allocatedResources", "capacity"}, func(name string) bool { return strings.EqualFold(key, name) })
}

// plainQuantity says whether decoding an amount is quick.
func plainQuantity(s string) bool {
	s = strings.TrimSpace(s)
	if len(s) > maxAmountLen {
		return false
	}
	i := strings.IndexAny(s, "eE")
	if i < 0 || i == len(s)-1 {
		return true
	}
	exponent, err := strconv.Atoi(s[i+1:])
	if errors.Is(err, strconv.ErrRange) {
		return false
	}
	// What is no number is a suffix, such as Ei.
	return err != nil || exponent >= -maxQuantityExponent && exponent <= maxQuantityExponent
}
