# ruff: noqa: F401
"""One contract: the very tests of the app, asked of uvicorn and of Ray over real sockets.

`client` in this folder's conftest is each server in turn.
"""

from tests.service.test_accept import (
    test_large_answer_is_not_compressed_for_who_does_not_ask,
    test_small_answer_is_sent_as_it_is,
)
from tests.service.test_access import (
    test_foreign_names_are_refused_on_every_route,
    test_loopback_names_are_served,
)
from tests.service.test_attention_route import (
    test_layers_come_in_the_order_asked_for,
    test_longest_text_is_answered_and_one_token_more_is_not,
    test_selection_is_that_part_of_the_whole_with_its_true_indices,
    test_vendor_form_says_the_same_as_json,
)
from tests.service.test_body_limits import (
    test_headers_over_32_kib_are_refused_with_the_numbers,
    test_json_is_taken_with_its_parameters,
    test_other_content_type_is_refused_by_name_and_says_how,
)
from tests.service.test_conditional_get import (
    test_answer_that_is_known_is_not_sent_again,
    test_run_has_no_tag,
)
from tests.service.test_edit_requests import (
    test_edit_never_reaches_the_next_request,
    test_report_says_what_was_asked_touched_and_changed,
)
from tests.service.test_headers import (
    test_bad_request_id_is_replaced,
    test_browser_of_a_foreign_page_may_not,
    test_browser_of_a_local_page_may_read_every_answer,
    test_every_refusal_is_a_problem_that_names_its_request,
    test_good_request_id_is_taken,
    test_no_answer_is_sniffed_and_each_has_its_own_id,
    test_pages_on_this_machine_are_let_in_on_any_port,
    test_pages_that_only_look_local_are_not,
    test_preflight_is_answered_and_kept_for_ten_minutes,
    test_preflight_of_a_foreign_page_is_refused,
    test_run_says_where_its_time_went_and_is_not_kept,
)
from tests.service.test_health import test_running_server_is_live_and_ready
from tests.service.test_hostile_bodies import (
    test_repeated_key_counts_as_the_last,
    test_what_is_no_json_is_a_400_that_says_why,
    test_what_no_schema_takes_is_a_422,
)
from tests.service.test_input import test_text_and_its_ids_give_the_same_numbers
from tests.service.test_inspect_captures import test_answer_says_enough_to_be_made_again
from tests.service.test_text_routes import (
    test_ids_give_the_text_back,
    test_offsets_cut_the_text_in_bytes_characters_and_utf16,
    test_split_character_is_shown_whole_on_its_first_token,
)
from tests.service.test_wire_forms import test_bytes_come_with_the_same_description_as_json
