//! One small run in the forms of ROCm 6.2 and ROCm 7, written by hand.

/// `*_kernel_trace.csv` of ROCm 7.
pub(in super::super) const TRACE: &str = r#""Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 1",1,1,834304,1,10,"matvec_2_1",1,1550151853029637,1550151853041637,0,0,40,0,128,128,1,1,65536,1,1
"KERNEL_DISPATCH","Agent 1",1,1,834304,2,10,"matvec_2_1",2,1550151853042437,1550151853056437,0,0,40,0,128,128,1,1,65536,1,1
"KERNEL_DISPATCH","Agent 1",1,1,834304,3,11,"void rms<float, 4>(float*, float const*)",3,1550151853056500,1550151853060500,512,0,24,0,128,256,1,1,256,1,1
"#;

/// `*_counter_collection.csv` of ROCm 7: two counters of three dispatches, one of which never counts.
pub(in super::super) const COUNTERS: &str = r#""Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"
1,1,"Agent 1",1,15606,15606,65536,10,"matvec_2_1",128,0,0,40,0,128,"GL2C_HIT_sum",0.000000,3200098838431081,3200098838451081
1,1,"Agent 1",1,15606,15606,65536,10,"matvec_2_1",128,0,0,40,0,128,"SQ_WAVES",2048.000000,3200098838431081,3200098838451081
2,2,"Agent 1",1,15606,15606,65536,10,"matvec_2_1",128,0,0,40,0,128,"GL2C_HIT_sum",0.00000000e+00,3200098838589014,3200098838609014
2,2,"Agent 1",1,15606,15606,65536,10,"matvec_2_1",128,0,0,40,0,128,"SQ_WAVES",2048.000000,3200098838589014,3200098838609014
3,3,"Agent 1",1,15606,15606,256,11,"void rms<float, 4>(float*, float const*)",256,512,0,24,0,128,"GL2C_HIT_sum",0.000000,3200098838746207,3200098838751207
3,3,"Agent 1",1,15606,15606,256,11,"void rms<float, 4>(float*, float const*)",256,512,0,24,0,128,"SQ_WAVES",8.000000,3200098838746207,3200098838751207
"#;

/// The same of ROCm 6.2: agents are numbers and dispatches have no times.
pub(in super::super) const COUNTERS_6_2: &str = r#""Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name","Counter_Value"
1,1,1,1,19396,19396,1048576,16,"void add<float>(float*, int)",64,0,0,8,16,"SQ_WAVES",16384
2,2,1,1,19396,19396,1048576,16,"void add<float>(float*, int)",64,0,0,8,16,"SQ_WAVES",16384
"#;

pub(in super::super) const CALLS: &str = r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API_EXT","hipModuleLaunchKernel",15606,15606,1,3200098838400000,3200098838402500
"HIP_RUNTIME_API_EXT","hipStreamSynchronize",15606,15606,2,3200098838410000,3200098838447500
"#;

pub(in super::super) const AGENTS: &str = r#""Node_Id","Logical_Node_Id","Agent_Type","Cpu_Cores_Count","Simd_Count","Wave_Front_Size","Cu_Count","Gfx_Target_Version","Name","Vendor_Name","Product_Name","Model_Name"
0,0,"CPU",16,0,0,16,0,"AMD Ryzen 9 7950X 16-Core Processor","CPU","AMD Ryzen 9 7950X 16-Core Processor",""
1,1,"GPU",0,168,32,84,110000,"gfx1100","AMD","AMD Radeon RX 7900 XT","navi31"
"#;

/// `*_results.json` of ROCm 7, of the same run: a counter has a record for each shader engine.
pub(in super::super) const JSON: &str = r#"{
 "rocprofiler-sdk-tool": [
  {
   "metadata": {"pid": 15606, "init_time": 3200098000000000, "fini_time": 3200099000000000, "command": ["app"]},
   "agents": [
    {"size": 360, "id": {"handle": 11}, "type": 1, "cpu_cores_count": 16, "simd_count": 0, "cu_count": 16,
     "name": "AMD Ryzen 9 7950X 16-Core Processor", "product_name": "AMD Ryzen 9 7950X 16-Core Processor"},
    {"size": 360, "id": {"handle": 22}, "type": 2, "cpu_cores_count": 0, "simd_count": 168, "cu_count": 84,
     "name": "gfx1100", "product_name": "AMD Radeon RX 7900 XT"}
   ],
   "counters": [
    {"agent_id": {"handle": 22}, "id": {"handle": 281}, "name": "SQ_WAVES", "is_derived": 0, "block": "SQ"},
    {"agent_id": {"handle": 22}, "id": {"handle": 282}, "name": "GL2C_HIT_sum", "is_derived": 1}
   ],
   "strings": {
    "callback_records": [],
    "buffer_records": [
     {"kind": "NONE", "operations": []},
     {"kind": "HIP_RUNTIME_API_EXT", "operations": ["hipModuleLaunchKernel", "hipStreamSynchronize"]}
    ]
   },
   "code_objects": [],
   "kernel_symbols": [
    {"size": 48, "kernel_id": 10, "code_object_id": 3, "kernel_name": "matvec_2_1.kd", "formatted_kernel_name": "matvec_2_1"},
    {"size": 48, "kernel_id": 11, "code_object_id": 3, "kernel_name": "_Z3rmsIfLi4EEvPfPKf.kd",
     "formatted_kernel_name": "void rms<float, 4>(float*, float const*)"}
   ],
   "callback_records": {
    "counter_collection": [
     {"dispatch_data": {"size": 160, "correlation_id": {"internal": 1, "external": 0},
       "start_timestamp": 3200098838431081, "end_timestamp": 3200098838451081,
       "dispatch_info": {"size": 96, "agent_id": {"handle": 22}, "queue_id": {"handle": 1}, "kernel_id": 10, "dispatch_id": 1}},
      "records": [{"counter_id": {"handle": 281}, "value": 1024.0}, {"counter_id": {"handle": 281}, "value": 1024.0},
       {"counter_id": {"handle": 282}, "value": 0.0}]},
     {"dispatch_data": {"start_timestamp": 3200098838589014, "end_timestamp": 3200098838609014,
       "dispatch_info": {"kernel_id": 10, "dispatch_id": 2}},
      "records": [{"counter_id": {"handle": 281}, "value": 2048.0}, {"counter_id": {"handle": 282}, "value": 0.0}]},
     {"dispatch_data": {"start_timestamp": 3200098838746207, "end_timestamp": 3200098838751207,
       "dispatch_info": {"kernel_id": 11, "dispatch_id": 3}},
      "records": [{"counter_id": {"handle": 281}, "value": 8.0}, {"counter_id": {"handle": 282}, "value": 0.0}]}
    ]
   },
   "buffer_records": {
    "kernel_dispatch": [
     {"size": 184, "kind": 11, "operation": 3, "thread_id": 834304, "correlation_id": {"internal": 1, "external": 0},
      "start_timestamp": 1550151853029637, "end_timestamp": 1550151853041637,
      "dispatch_info": {"agent_id": {"handle": 22}, "kernel_id": 10, "dispatch_id": 1, "workgroup_size": {"x": 128, "y": 1, "z": 1}}},
     {"start_timestamp": 1550151853042437, "end_timestamp": 1550151853056437, "dispatch_info": {"kernel_id": 10}},
     {"start_timestamp": 1550151853056500, "end_timestamp": 1550151853060500, "dispatch_info": {"kernel_id": 11}}
    ],
    "hip_api": [
     {"size": 56, "kind": 1, "operation": 0, "thread_id": 1, "start_timestamp": 3200098838400000, "end_timestamp": 3200098838402500},
     {"size": 56, "kind": 1, "operation": 1, "thread_id": 1, "start_timestamp": 3200098838410000, "end_timestamp": 3200098838447500}
    ],
    "hsa_api": []
   }
  }
 ]
}"#;
